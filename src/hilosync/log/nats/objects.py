"""Named objects as the newest message of a subject each: `hilo.RUN.FOLDER.NAME.whole`."""

from __future__ import annotations

from hilosync.log.nats.parts import joined, split
from hilosync.log.nats.stream import Stream

__all__ = ["NatsObjects"]

# A dot separates the parts of a subject, and the name of a worker may hold one.
_DOT = "%2E"


class NatsObjects:
    """`NamedObjects` in two streams; a message that the server has acknowledged is on its disk.

    Args:
        url: the log's address, for messages.
        run: name of the run.
        blobs: stream of the folder `blobs`, which a remote site may mirror.
        notes: stream of all other folders, which are few and change.
        largest: bytes that one message may have.
    """

    def __init__(self, url: str, run: str, blobs: Stream, notes: Stream, largest: int):
        self.url = url
        self._run = run
        self._blobs = blobs
        self._notes = notes
        self._largest = largest

    def get(self, path: str) -> bytes | None:
        """See `NamedObjects.get`."""
        stream, subject = self._place(path)
        message = stream.last(f"{subject}.whole")
        return None if message is None else joined(stream, subject, message)

    def exists(self, path: str) -> bool:
        """See `NamedObjects.exists`."""
        stream, subject = self._place(path)
        return stream.last(f"{subject}.whole") is not None

    def create(self, path: str, content: bytes, durable: bool = False) -> bool:
        """See `NamedObjects.create`."""
        return self._publish(path, content, {"Nats-Expected-Last-Subject-Sequence": "0"})

    def replace(self, path: str, content: bytes, durable: bool = False) -> None:
        """See `NamedObjects.replace`."""
        self._publish(path, content, {})

    def names(self, folder: str) -> list[str]:
        """See `NamedObjects.names`."""
        stream, subject = self._place(f"{folder}/*")
        return [found.split(".")[3].replace(_DOT, ".") for found in stream.subjects(f"{subject}.whole")]

    def remove(self, path: str) -> None:
        """See `NamedObjects.remove`."""
        stream, subject = self._place(path)
        stream.purge(f"{subject}.*")

    def _publish(self, path: str, content: bytes, conditions: dict[str, str]) -> bool:
        stream, subject = self._place(path)
        payload, headers = split(stream, subject, content, self._largest)
        return not stream.publish(f"{subject}.whole", payload, conditions | headers).wrong_sequence

    def _place(self, path: str) -> tuple[Stream, str]:
        folder, _, name = path.partition("/")
        stream = self._blobs if folder == "blobs" else self._notes
        return stream, f"hilo.{self._run}.{folder}.{name.replace('.', _DOT)}"
