"""One object in a relay: first on its way here, then kept. Many read it at once, each at a pace of its own."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress

from hilosync.errors import HiLoError

__all__ = ["Transfer"]

_HELD_BACK = 1024
"""Last bytes that nobody gets before the whole object is verified: so nobody takes a damaged one for whole."""

_PIECE = 256 << 10
"""Bytes that a reader gets at a time, at most."""


class Transfer:
    """The bytes of an object as far as they are here, and who reads them.

    Everything happens in one event loop. The writer calls `begin`, `add`, and one of `complete`, `fail`
    and `miss`; readers wait in `begun` and `read`.

    Attributes:
        path: the object's name.
        tag: names this very copy: whoever lost a connection may go on where it stopped, in this copy alone.
        readers: how many are reading; it stays in memory while there are any.
        deadline: loop time until which somebody waits for the object to exist.
        expires: loop time after which it must be asked for again; None for never.
    """

    def __init__(self, path: str, store_and_forward: bool = False):
        self.path = path
        self.tag = f'"{secrets.token_hex(12)}"'
        self.readers = 0
        self.deadline = 0.0
        self.expires: float | None = None
        self._forward_at_once = not store_and_forward
        self._content = bytearray()
        self._size: int | None = None
        self._received = 0
        self._error: HiLoError | None = None
        self._verified = False
        self._missing = False
        self._changed = asyncio.Event()

    @property
    def size(self) -> int | None:
        """Bytes of the whole object, once they are known."""
        return self._size

    @property
    def received(self) -> int:
        """Bytes that have come."""
        return self._received

    @property
    def content(self) -> bytearray:
        """All bytes, of which the first `received` mean something."""
        return self._content

    @property
    def verified(self) -> bool:
        """Whether it is here, whole and checked."""
        return self._verified

    @property
    def missing(self) -> bool:
        """Whether the upstream has said at least once that there is no such object."""
        return self._missing

    @property
    def failed(self) -> bool:
        """Whether it will never be whole."""
        return self._error is not None

    def begin(self, size: int) -> None:
        """Makes room for the object."""
        self._content = bytearray(size)
        self._size = size
        self._announce()

    def add(self, chunk: bytes) -> bool:
        """Takes the next bytes; False if they are more than was announced."""
        end = self._received + len(chunk)
        if end > len(self._content):
            return False
        self._content[self._received : end] = chunk
        self._received = end
        self._announce()
        return True

    def complete(self) -> None:
        """Gives out what was held back."""
        self._verified = True
        self._announce()

    def miss(self) -> None:
        """Tells those who do not want to wait that there is no such object."""
        if not self._missing:
            self._missing = True
            self._announce()

    def fail(self, error: HiLoError) -> None:
        """Ends the transfer for everybody who reads it."""
        self._error = error
        self._announce()

    async def begun(self, deadline: float) -> bool:
        """Whether the object is there: True once its size is known, False if it is missing until the deadline.

        Raises:
            HiLoError: it cannot be had.
        """
        loop = asyncio.get_running_loop()
        while self._size is None:
            if self._error is not None:
                raise self._error
            remaining = deadline - loop.time()
            if self._missing and remaining <= 0:
                return False
            # Whoever does not wait for the object still waits for the upstream's word, which has a limit of its own.
            await self._news(remaining if self._missing else None)
        return True

    async def read(self, offset: int, end: int | None = None) -> bytes:
        """Some bytes from an offset below the size on, as soon as there are any, and none from `end` on.

        Raises:
            HiLoError: the transfer has failed.
        """
        while True:
            if self._error is not None:
                raise self._error
            until = min(self._visible(), offset + _PIECE, len(self._content) if end is None else end)
            if until > offset:
                return bytes(memoryview(self._content)[offset:until])
            await self._news(None)

    def _visible(self) -> int:
        if self._verified:
            return self._received
        if not self._forward_at_once:
            return 0
        return min(self._received, len(self._content) - _HELD_BACK)

    def _announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _news(self, limit: float | None) -> None:
        changed = self._changed
        # Not `wait_for`, which in Python 3.11 can lose a cancellation.
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await changed.wait()
