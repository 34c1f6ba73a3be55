"""One log over two ways: what is published is read from a view near by, all else goes to the log itself.

So a worker behind a relay or a CDN reads records and snapshots there, and takes orders and delivers
rollouts where the learner looks for them.
"""

from __future__ import annotations

from dataclasses import dataclass

from hilosync.log.base import BlobStore, Log, SnapshotIndex, StepLog

__all__ = ["split_log"]


def split_log(view: Log, log: Log) -> Log:
    """The log, read through its view.

    Args:
        view: the same records, blobs and snapshots, which may come a little later there.
        log: where everything is written, listed and removed.
    """
    return Log(
        url=f"{view.url}+{log.url}",
        steps=_SplitSteps(view.steps, log.steps),
        blobs=_SplitBlobs(view.blobs, log.blobs),
        snapshots=_SplitSnapshots(view.snapshots, log.snapshots),
        mailbox=log.mailbox,
        polling=log.polling,
    )


@dataclass
class _SplitSteps:
    view: StepLog
    log: StepLog

    def append(self, version: int, record: bytes) -> None:
        self.log.append(version, record)

    def read(self, version: int, wait: float = 0.0) -> bytes | None:
        return self.view.read(version, wait)

    def head(self, at_least: int = 0) -> int:
        return self.view.head(at_least)

    def highest(self) -> int:
        return self.log.highest()

    def forget(self, before: int) -> None:
        self.log.forget(before)


@dataclass
class _SplitBlobs:
    view: BlobStore
    log: BlobStore

    def put(self, content: bytes) -> str:
        return self.log.put(content)

    def get(self, key: str) -> bytes:
        return self.view.get(key)

    def keys(self) -> list[str]:
        return self.log.keys()

    def remove(self, key: str) -> None:
        self.log.remove(key)


@dataclass
class _SplitSnapshots:
    view: SnapshotIndex
    log: SnapshotIndex

    def publish(self, version: int, manifest: bytes) -> bool:
        return self.log.publish(version, manifest)

    def read(self, version: int) -> bytes | None:
        return self.view.read(version)

    def versions(self) -> list[int]:
        return self.view.versions()

    def forget(self, before: int) -> None:
        self.log.forget(before)
