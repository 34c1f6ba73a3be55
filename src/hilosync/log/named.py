"""Bytes with names: what blobs, snapshot indices and mailboxes are made of, on any storage."""

from __future__ import annotations

from typing import Protocol

__all__ = ["NamedObjects"]


class NamedObjects(Protocol):
    """Objects called `folder/name`. Everything rests on `create`: of any number of racers exactly one wins.

    Nobody sees an object before it is whole. Every call may raise `LogUnavailable`.
    """

    @property
    def url(self) -> str:
        """The log's address, for messages."""
        ...

    def get(self, path: str) -> bytes | None:
        """The object's bytes, or None if there is none."""
        ...

    def exists(self, path: str) -> bool:
        """Whether there is such an object."""
        ...

    def create(self, path: str, content: bytes, durable: bool = False) -> bool:
        """Creates the object whole, or changes nothing and returns False if there is one already."""
        ...

    def replace(self, path: str, content: bytes, durable: bool = False) -> None:
        """Creates or overwrites the object: a reader sees the old bytes or the new."""
        ...

    def names(self, folder: str) -> list[str]:
        """Names of the objects in a folder, in no particular order."""
        ...

    def remove(self, path: str) -> None:
        """Removes the object, if there is one."""
        ...
