"""Named objects in a store: the few operations that a log needs, over `obstore`.

Everything rests on one of them: `create` is atomic, so of any number of racing creators exactly
one wins, and nobody sees an object before it is whole.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore, MemoryStore, ObjectStore

from hilosync.errors import ConfigurationError, LogNotFound, LogUnavailable, LogUnreachable
from hilosync.log.polling import Polling

__all__ = ["LARGEST_OBJECT", "FileObjects", "Objects", "file_objects", "file_root", "memory_objects", "sync"]

LARGEST_OBJECT = 1 << 31
"""Bytes of an object beyond which it is not read at all."""

_FOLDERS = ("steps", "blobs", "snapshots", "orders", "claims", "rollouts", "notices", "staging")

_ADVICE = {
    errno.ENOSPC: "free some space there, or use another log",
    errno.EDQUOT: "free some space there, or use another log",
    errno.EFBIG: "raise the limit on file sizes, or use another log",
    errno.EACCES: "ask for access, or use another log",
    errno.EPERM: "ask for access, or use another log",
    errno.EROFS: "mount it writable, or use another log",
    errno.ENOTDIR: "a part of the path is a file: use another path",
    errno.ENAMETOOLONG: "use a shorter path",
    errno.EEXIST: "it is a file: use another path",
}


class Objects:
    """Objects of an `obstore` store whose writes are durable by themselves, or need not be.

    Attributes:
        store: any store with create-only writes.
        url: the log's address, for messages.
    """

    def __init__(self, store: ObjectStore, url: str):
        self.store = store
        self.url = url

    def get(self, path: str) -> bytes | None:
        """The object's bytes, or None if there is none.

        Raises:
            LogUnavailable: the storage did not answer, or the object is absurdly large.
        """
        with self._explained(f"read {path}"):
            try:
                answer = obstore.get(self.store, path)
                self.bounded(path, answer.meta["size"])
                return bytes(answer.bytes())
            except FileNotFoundError:
                return None

    def bounded(self, path: str, size: int) -> int:
        """The object's size, unless it is absurd.

        Raises:
            LogUnavailable: it is.
        """
        if size > LARGEST_OBJECT:
            raise LogUnavailable(
                f"{self.url}: {path} has {size} bytes: expected at most {LARGEST_OBJECT}; it is no part of a log"
            )
        return size

    def exists(self, path: str) -> bool:
        """Whether there is such an object."""
        with self._explained(f"look for {path}"):
            try:
                obstore.head(self.store, path)
                return True
            except FileNotFoundError:
                return False

    def create(self, path: str, content: bytes, durable: bool = False) -> bool:
        """Creates the object whole, or changes nothing and returns False if there is one already.

        Args:
            path: the object's name.
            content: its bytes.
            durable: whether it must survive a crash of the machine before it is seen by anyone.

        Raises:
            LogUnavailable: the storage refused or did not answer.
        """
        with self._explained(f"write {path}"):
            try:
                obstore.put(self.store, path, content, mode="create")
                return True
            except AlreadyExistsError:
                return False

    def replace(self, path: str, content: bytes, durable: bool = False) -> None:
        """Creates or overwrites the object: a reader sees the old bytes or the new.

        Raises:
            LogUnavailable: the storage refused or did not answer.
        """
        with self._explained(f"write {path}"):
            obstore.put(self.store, path, content)

    def names(self, folder: str) -> list[str]:
        """Names of the objects in a folder, in no particular order."""
        with self._explained(f"list {folder}"):
            return [
                entry["path"].removeprefix(f"{folder}/") for page in obstore.list(self.store, folder) for entry in page
            ]

    def remove(self, path: str) -> None:
        """Removes the object, if there is one."""
        with self._explained(f"remove {path}"), suppress(FileNotFoundError):
            obstore.delete(self.store, path)

    def wait_for(self, path: str, polling: Polling, wait: float) -> bytes | None:
        """The object's bytes as soon as it exists, or None after `wait` seconds."""
        return polling.until(lambda: self.get(path), wait)

    def _explained(self, doing: str) -> AbstractContextManager[None]:
        return _explained(self.url, doing, self.reason, self.passes)

    def reason(self, error: BaseException) -> str:
        """Why the storage refused, in one line, and what helps."""
        return _reason_of_system(error)

    def passes(self, error: BaseException) -> bool:
        """Whether the same call may succeed later, as after a cut of the network."""
        return False


class FileObjects(Objects):
    """Objects as files below a directory; a durable one is on the disk before it has its name."""

    def __init__(self, store: LocalStore, root: Path, url: str):
        super().__init__(store, url)
        self._root = root

    def get(self, path: str) -> bytes | None:
        """See `Objects.get`."""
        content = super().get(path)
        if content is None:
            self._refuse_directory(path)
        return content

    def exists(self, path: str) -> bool:
        """See `Objects.exists`."""
        found = super().exists(path)
        if not found:
            self._refuse_directory(path)
        return found

    def create(self, path: str, content: bytes, durable: bool = False) -> bool:
        """See `Objects.create`."""
        if not durable:
            return super().create(path, content)
        with self._explained(f"write {path}"):
            try:
                self._write_aside(path, content, overwrite=False)
                created = True
            except AlreadyExistsError:
                created = False
            # Also when it was there before: its creator may have died between the name and the sync.
            sync((self._root / path).parent)
        return created

    def replace(self, path: str, content: bytes, durable: bool = False) -> None:
        """See `Objects.replace`."""
        if not durable:
            return super().replace(path, content)
        with self._explained(f"write {path}"):
            self._write_aside(path, content, overwrite=True)
            sync((self._root / path).parent)
        return None

    def _refuse_directory(self, path: str) -> None:
        """A directory in an object's place would pass for no object, and nothing could be written there."""
        if (self._root / path).is_dir():
            raise LogUnavailable(
                f"{self.url}: {path} is a directory: expected a file; it is no part of a log, move it away"
            )

    def _write_aside(self, path: str, content: bytes, overwrite: bool) -> None:
        """Writes and syncs the bytes under a name of their own, then gives them the name `path`."""
        staged = f"staging/{os.getpid()}-{secrets.token_hex(8)}"
        try:
            obstore.put(self.store, staged, content)
            sync(self._root / staged)
            obstore.rename(self.store, staged, path, overwrite=overwrite)
        except BaseException:
            with suppress(OSError):
                (self._root / staged).unlink(missing_ok=True)
            raise


_memory: dict[str, MemoryStore] = {}


def memory_objects(name: str, create: bool) -> Objects:
    """The objects of `memory:NAME`: one store per name and process, where learner and replica meet.

    Raises:
        LogNotFound: nobody in this process has created it, and `create` is False.
    """
    url = f"memory:{name}"
    if create:
        return Objects(_memory.setdefault(name, MemoryStore()), url)
    if name not in _memory:
        raise LogNotFound(f"no run at {url}: expected a learner in this process; another process needs a file: log")
    return Objects(_memory[name], url)


def file_root(path: str) -> Path:
    """The absolute directory that the path of a `file:` address names.

    Raises:
        ConfigurationError: it begins with the home of a user whom this machine does not know.
    """
    try:
        return Path(path.removeprefix("//")).expanduser().absolute()
    except RuntimeError as error:
        raise ConfigurationError(f"file:{path}: there is no such home directory; write the whole path") from error


def file_objects(path: str, create: bool) -> Objects:
    """The objects below a directory, which `create` makes with its parents.

    Raises:
        ConfigurationError: the path begins with the home of an unknown user.
        LogNotFound: there is no such directory, and `create` is False.
        LogUnavailable: it cannot be made or opened.
    """
    url = f"file:{path}"
    root = file_root(path)
    with _explained(url, "open it", _reason_of_system):
        if not create and not root.exists():
            raise LogNotFound(f"no run at {url}: there is no {root}; start its learner, or check the address")
        if root.exists() and not root.is_dir():
            raise LogUnavailable(f"{url}: cannot open it: {root} is a file; expected a directory, or a new path")
        if create:
            for folder in _FOLDERS:
                (root / folder).mkdir(parents=True, exist_ok=True)
            sync(root)
            sync(root.parent)
        return FileObjects(LocalStore(root), root, url)


@contextmanager
def _explained(
    url: str,
    doing: str,
    reason: Callable[[BaseException], str],
    passes: Callable[[BaseException], bool] = lambda error: False,
) -> Iterator[None]:
    """Turns the storage's errors into one line that says what could not be done, why and what helps."""
    try:
        yield
    except (BaseError, OSError) as error:
        kind = LogUnreachable if passes(error) else LogUnavailable
        raise kind(f"{url}: cannot {doing}: {reason(error)}") from error


def sync(path: Path) -> None:
    """Returns once a file, or the names in a directory, would survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _reason_of_system(error: BaseException) -> str:
    """Why the system refused, in one line, and what helps. obstore gives the number in its text only."""
    text = str(error)
    found = re.search(r"\(os error (\d+)\)", text)
    number = int(found[1]) if found else getattr(error, "errno", None)
    if number is None:
        return text.partition("\n")[0]
    advice = _ADVICE.get(number)
    return f"{os.strerror(number)}; {advice}" if advice else os.strerror(number)
