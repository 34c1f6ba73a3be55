"""A real NATS server with a configuration of `deploy/nats`, which a test may kill and start again."""

from __future__ import annotations

import os
from contextlib import ExitStack
from itertools import count
from pathlib import Path

from hilosync.bench.nats_server import find_nats_server, free_port, started_server

CONFIGURATIONS = Path(__file__).parents[2] / "deploy" / "nats"

runs = count()


class NatsServer:
    """A server on a free port whose data lie in a folder.

    Args:
        folder: for its data and its configuration.
        configuration: a file of `deploy/nats`.
        changes: texts to replace in it.
        environment: variables that it mentions.
    """

    def __init__(self, folder: Path, configuration: str = "server.conf", changes=(), environment=None):
        self.port = free_port()
        self.output = folder / "output"
        self._environment = os.environ | (environment or {})
        self._stack = ExitStack()
        for path in CONFIGURATIONS.glob("*.conf"):
            text = path.read_text("utf-8")
            for old, new in [
                ("/var/lib/nats", str(folder / "data")),
                ("0.0.0.0:4222", f"127.0.0.1:{self.port}"),
                *changes,
            ]:
                text = text.replace(old, new)
            (folder / path.name).write_text(text, "utf-8")
        self._command = [str(find_nats_server()), "-c", str(folder / configuration)]
        self.start()

    def start(self) -> None:
        self.process = self._stack.enter_context(
            started_server(self._command, self.port, self.output, self._environment)
        )

    def kill(self) -> None:
        """Ends it by SIGKILL, as a crash does."""
        self._stack.close()

    def url(self, options: str = "", run: str | None = None, login: str = "", scheme: str = "nats") -> str:
        """The address of a run, by default of a new one."""
        return f"{scheme}://{login}127.0.0.1:{self.port}/{run or f'run-{next(runs)}'}{options}"
