"""The program behind `links`: compiled from forwarder.c once per machine, and spoken to in lines."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

from blake3 import blake3

from hilosync.errors import ConfigurationError, PeerSilent

__all__ = ["Forwarder", "find_compiler", "forwarder_program"]

_SECONDS_TO_ANSWER = 20.0
_SECONDS_TO_COMPILE = 120.0
_SOURCE = Path(__file__).with_name("forwarder.c")


def find_compiler() -> str | None:
    """A C compiler on the path, or None."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def forwarder_program() -> Path:
    """The compiled program, in the user's cache folder; made there if it is not there yet.

    Raises:
        ConfigurationError: there is no C compiler, or it fails.
    """
    stamp = blake3(_SOURCE.read_bytes() + platform.machine().encode()).hexdigest(8)
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hilosync"
    program = folder / f"forwarder-{stamp}"
    if program.exists():
        return program
    compiler = find_compiler()
    if compiler is None:
        raise ConfigurationError("links between namespaces need a C compiler: install gcc and libc6-dev")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        made = Path(place) / program.name
        ended = subprocess.run(
            [compiler, "-O2", "-o", str(made), str(_SOURCE)],
            capture_output=True,
            text=True,
            timeout=_SECONDS_TO_COMPILE,
            check=False,
        )
        if ended.returncode != 0:
            said = ended.stderr.strip().splitlines() or ["no word from it"]
            raise ConfigurationError(f"{compiler} cannot compile {_SOURCE}: {said[0]}; install libc6-dev and try again")
        made.replace(program)  # whole or not at all, also for others who compile it now
    return program


class Forwarder:
    """A running forwarder: a hub namespace, the sites' namespaces, and what carries packets between them.

    Attributes:
        hub: what to put before a command to run it in the hub's namespace.
        process_id: of the forwarder.
    """

    def __init__(self) -> None:
        """Starts it.

        Raises:
            ConfigurationError: it cannot be compiled, or may not make a namespace.
        """
        self._program = str(forwarder_program())
        # A session of its own: an interrupt from the terminal must not end it before those who use it.
        self._process = subprocess.Popen(
            [self._program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self.process_id = self._process.pid
        try:
            self.hub = self.entering(self._answer())
        except BaseException:
            self.close()
            raise

    def entering(self, descriptor: int) -> list[str]:
        """What to put before a command to run it in the namespace of the forwarder's descriptor."""
        return [self._program, "enter", f"/proc/{self.process_id}/fd/{descriptor}"]

    def ask(self, line: str) -> int:
        """Has a line obeyed, and returns the number in the answer.

        Raises:
            ConfigurationError: the kernel refused.
            PeerSilent: the forwarder has died, or did not answer within 20 s.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        except OSError as error:
            raise PeerSilent(f"the forwarder has ended: cannot ask it for {line!r}; make another network") from error
        return self._answer(line)

    def close(self) -> None:
        """Ends it, and with it all links, and every process that is still in one of the namespaces."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(_SECONDS_TO_ANSWER)
        finally:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()

    def _answer(self, line: str = "a namespace") -> int:
        assert self._process.stdout is not None
        timer = threading.Timer(_SECONDS_TO_ANSWER, self._process.kill)
        timer.start()
        try:
            said, _, rest = self._process.stdout.readline().strip().partition(" ")
        finally:
            timer.cancel()
        if said == "ok":
            return int(rest)
        if said == "error":
            raise ConfigurationError(f"the kernel refuses {line!r}: {rest}")
        raise PeerSilent(f"the forwarder has ended without an answer to {line!r}; make another network")
