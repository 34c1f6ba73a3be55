"""Who is there: notices that carry a heartbeat, and the clock of whoever reads them.

A notice says what its sender is doing and carries a counter that grows while the sender lives. The
reader measures silence with its own monotonic clock, so clocks of two machines are never compared.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress

import msgspec

from hilosync.errors import Fenced, LogError
from hilosync.log import Mailbox

__all__ = ["LEARNER", "Heartbeat", "Notice", "Presence", "Roll"]

LEARNER = "learner"
"""The sender of the learner's notices."""


class Notice(msgspec.Struct, frozen=True):
    """The newest word of a learner or worker.

    Attributes:
        sender: its name; `LEARNER` for the learner.
        incarnation: random text that changes when the process is started again under the same name.
        beat: grows while the process lives.
        state: ``joining``, ``serving``, ``diverged`` (until it has healed), ``finished``, or ``failed``.
        version: the policy version held.
        digest: hex digest of that version.
        checks: digests compared so far.
        mismatches: digests that differed.
        apply_seconds: median time to verify, decode and replay one record.
        detail: what failed, for people.
        reading: version of the snapshot that is being loaded, posted before its manifest is read; 0 for none.
        oldest: the learner's: no order of a version below this one is answered any more; −1 if it does not say.
    """

    sender: str
    incarnation: str
    beat: int
    state: str
    version: int = 0
    digest: str = ""
    checks: int = 0
    mismatches: int = 0
    apply_seconds: float = 0.0
    detail: str = ""
    reading: int = 0
    oldest: int = -1


class Heartbeat:
    """Posts a notice whenever it changes and every `interval` seconds besides, from a thread of its own."""

    def __init__(self, mailbox: Mailbox, notice: Notice, interval: float = 1.0):
        self._mailbox = mailbox
        self._interval = interval
        self._lock = threading.Lock()
        self._notice = notice
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hilo-heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._post()
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._stop.set()
        self._thread.join(timeout=10 * self._interval)
        if isinstance(error, Fenced):
            return  # another learner has taken the place and the name of this one, which has no say any more
        if error is not None and self._notice.state != "failed":
            self._notice = msgspec.structs.replace(self._notice, state="failed", detail=str(error))
        # Whoever leaves because the storage failed must not have that error replaced by another.
        with suppress(LogError) if error is not None else nullcontext():
            self._post()

    @property
    def notice(self) -> Notice:
        """The newest notice."""
        return self._notice

    def update(self, **changes: object) -> None:
        """Changes fields of the notice and posts it at once."""
        with self._lock:
            self._notice = msgspec.structs.replace(self._notice, **changes)
        self._post()

    def _post(self) -> None:
        with self._lock:
            self._notice = msgspec.structs.replace(self._notice, beat=self._notice.beat + 1)
            self._mailbox.post(self._notice.sender, msgspec.json.encode(self._notice))

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            try:
                self._post()
            except LogError:
                # A heartbeat that cannot be posted is a heartbeat missed: the other side counts the
                # silence, and this side meets the same error in its next call of its own.
                continue


class Presence:
    """How long each sender has been silent, by this process's clock."""

    def __init__(self, mailbox: Mailbox, clock: Callable[[], float] = time.monotonic):
        self._mailbox = mailbox
        self._clock = clock
        self._heard: dict[str, tuple[Notice, float]] = {}

    def look(self) -> Roll:
        """Reads all notices and notes whose heartbeat has moved."""
        now = self._clock()
        for name, content in self._mailbox.notices().items():
            try:
                notice = msgspec.json.decode(content, type=Notice)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                # Whoever cannot say who it is, is not there: a stray file must not end a run.
                continue
            heard = self._heard.get(name)
            if heard is None or (heard[0].incarnation, heard[0].beat) != (notice.incarnation, notice.beat):
                self._heard[name] = (notice, now)
        return Roll({name: (notice, now - at) for name, (notice, at) in self._heard.items()})


class Roll:
    """What `Presence.look` found: each sender's newest notice and its silence in seconds."""

    def __init__(self, entries: dict[str, tuple[Notice, float]]):
        self._entries = entries

    def notice(self, name: str) -> Notice | None:
        """The newest notice of a sender, or None if it never posted one."""
        entry = self._entries.get(name)
        return entry[0] if entry else None

    def silence(self, name: str) -> float:
        """Seconds since the sender's heartbeat last moved; infinite if it was never heard."""
        entry = self._entries.get(name)
        return entry[1] if entry else float("inf")

    def workers(self) -> list[Notice]:
        """The newest notices of all workers, by name."""
        return [notice for name, (notice, _) in sorted(self._entries.items()) if name != LEARNER]

    def living(self, silence: float) -> list[Notice]:
        """The notices of the workers that have been heard within `silence` seconds, and are not done."""
        return [
            worker
            for worker in self.workers()
            if worker.state not in ("finished", "failed") and self.silence(worker.sender) <= silence
        ]

    def alive(self, incarnation: str, silence: float) -> bool:
        """Whether the process of this incarnation has been heard within `silence` seconds."""
        return any(
            notice.incarnation == incarnation and notice.state in ("joining", "serving") and quiet <= silence
            for notice, quiet in self._entries.values()
        )
