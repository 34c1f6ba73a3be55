"""A relay's objects in memory: each is asked for once upstream, however many want it, and checked before it is kept."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hilosync.errors import HiLoError, LogUnavailable, MalformedRecord
from hilosync.log.polling import Polling
from hilosync.relay.transfer import Transfer
from hilosync.relay.upstream import Download, Upstream
from hilosync.relay.verification import Verifier, is_mark

__all__ = ["Cache"]

_POLLING = Polling(shortest=0.01, longest=0.5)
"""How often an upstream is asked that does not hold requests back itself."""

_logger = logging.getLogger(__name__)

_FRESH = 0.5
"""Seconds for which a mark, or that there is no such object, is believed without asking again."""

_LARGEST_MARK = 1 << 20
_ATTEMPTS = 4
_MISSES = 4096


class Cache:
    """Objects by name, at most `limit` bytes of them.

    Attributes:
        counts: ``hits`` (readers of what was here or on its way), ``asked``, ``fetched``, ``fetched_bytes``,
            ``dropped`` (damaged), ``failed``.
    """

    def __init__(self, upstream: Upstream, limit: int, store_and_forward: bool = False):
        """
        Args:
            upstream: where the objects come from.
            limit: bytes of all objects that are kept or on their way.
            store_and_forward: give nothing out before all of it is here, for comparison.
        """
        self.counts: Counter[str] = Counter()
        self._upstream = upstream
        self._limit = limit
        self._store_and_forward = store_and_forward
        self._verifier = Verifier()
        self._transfers: OrderedDict[str, Transfer] = OrderedDict()
        self._misses: OrderedDict[str, float] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def held_bytes(self) -> int:
        """Bytes in memory, those that are on their way included."""
        return sum(transfer.size or 0 for transfer in self._transfers.values())

    @property
    def held_objects(self) -> int:
        """Objects that are here, whole and checked."""
        return sum(transfer.verified for transfer in self._transfers.values())

    @asynccontextmanager
    async def reading(self, path: str, wait: float) -> AsyncIterator[Transfer | None]:
        """The object, which stays in memory meanwhile; None if it is not there within `wait` seconds.

        Raises:
            LogUnavailable: the upstream does not give it.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        transfer = self._kept(path)
        if transfer is None:
            if wait <= 0 and self._missed(path):
                yield None
                return
            transfer = self._start(path, deadline)
        elif transfer.size is not None:
            self.counts["hits"] += 1
        transfer.deadline = max(transfer.deadline, deadline)
        transfer.readers += 1
        try:
            yield transfer if await transfer.begun(deadline) else None
        finally:
            transfer.readers -= 1

    async def size(self, path: str) -> int | None:
        """The object's size, or None if there is none."""
        transfer = self._kept(path)
        if transfer is not None and transfer.size is not None:
            return transfer.size
        if self._missed(path):
            return None
        found = await self._upstream.size(path)
        if found is None:
            self._remember_miss(path)
        return found

    def would_wait_for_itself(self, told: str) -> bool:
        """See `Upstream.would_wait_for_itself`."""
        return self._upstream.would_wait_for_itself(told)

    async def close(self) -> None:
        """Ends all transfers."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._upstream.close()

    def _kept(self, path: str) -> Transfer | None:
        transfer = self._transfers.get(path)
        if transfer is None:
            return None
        if transfer.expires is not None and asyncio.get_running_loop().time() >= transfer.expires:
            del self._transfers[path]
            return None
        self._transfers.move_to_end(path)
        return transfer

    def _start(self, path: str, deadline: float) -> Transfer:
        transfer = self._transfers[path] = Transfer(path, self._store_and_forward)
        transfer.deadline = deadline
        if self._missed(path):
            transfer.miss()
        # Of nobody's request: it goes on when whoever asked first is gone.
        task = asyncio.get_running_loop().create_task(self._fetch(transfer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return transfer

    async def _fetch(self, transfer: Transfer) -> None:
        path = transfer.path
        loop = asyncio.get_running_loop()
        try:
            while not await self._receive(transfer):
                if loop.time() >= transfer.deadline:  # else somebody has come meanwhile who waits
                    self._remember_miss(path)
                    self._forget(transfer)
                    return
            # In a thread: other readers go on while a large object is hashed.
            await asyncio.to_thread(self._verifier.check, path, transfer.content)
            if is_mark(path):
                transfer.expires = loop.time() + _FRESH
            self.counts["fetched"] += 1
            self.counts["fetched_bytes"] += transfer.received
            transfer.complete()
        except HiLoError as error:
            if isinstance(error, LogUnavailable):
                self.counts["failed"] += 1
            else:
                self.counts["dropped"] += 1
                _logger.warning("dropped %s: %s", path, error)
            self._forget(transfer)
            transfer.fail(error)
        except BaseException:
            self._forget(transfer)
            transfer.fail(LogUnavailable("the relay has ended; try again"))
            raise

    async def _receive(self, transfer: Transfer) -> bool:
        """Takes the object in, in as many attempts as it needs; False if nobody waits for it any more."""
        tag: str | None = None
        failures = 0
        while True:
            before = transfer.received
            try:
                async with self._opened(transfer, tag) as download:
                    if download is None:
                        return False
                    tag = download.tag
                    await self._take(transfer, download)
                    return True
            except LogUnavailable:
                # Before the first byte the readers are better told at once, and ask again themselves.
                failures = 1 if transfer.received > before else failures + 1
                if transfer.received == 0 or failures == _ATTEMPTS:
                    raise
            await asyncio.sleep(0.1 * 2**failures)

    @asynccontextmanager
    async def _opened(self, transfer: Transfer, tag: str | None) -> AsyncIterator[Download | None]:
        """The download, as soon as the object is there and as long as somebody waits for that."""
        loop = asyncio.get_running_loop()
        pause = _POLLING.shortest
        while True:
            # First a plain question: those who do not wait must hear soon that there is nothing.
            wait = max(0.0, transfer.deadline - loop.time()) if transfer.missing else 0.0
            started = time.monotonic()
            self.counts["asked"] += 1
            async with self._upstream.open(transfer.path, wait, transfer.received, tag) as download:
                if download is not None:
                    yield download
                    return
            transfer.miss()
            if loop.time() >= transfer.deadline:
                yield None
                return
            if time.monotonic() - started < pause:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _POLLING.longest)

    async def _take(self, transfer: Transfer, download: Download) -> None:
        if transfer.size is None:
            self._make_room(transfer.path, download.size)
            transfer.begin(download.size)
        if (download.size, download.offset) != (transfer.size, transfer.received):
            # Its readers have had bytes of another copy, so they must begin again.
            raise MalformedRecord(f"{transfer.path} is another object than before the transfer broke off")
        async for chunk in download.chunks:
            if not transfer.add(chunk):
                raise MalformedRecord(f"{transfer.path}: more bytes came than the {transfer.size} announced")
        if transfer.received < download.size:
            raise LogUnavailable(f"{transfer.path}: {transfer.received} of {download.size} bytes came; try again")

    def _make_room(self, path: str, size: int) -> None:
        limit = min(self._limit, _LARGEST_MARK) if is_mark(path) else self._limit
        if size > limit:
            raise LogUnavailable(f"{path} has {size} bytes: expected at most {limit}; raise --cache-bytes")
        for old in [*self._transfers.values()]:
            if self.held_bytes + size <= self._limit:
                return
            if old.verified and old.readers == 0:
                self._forget(old)
        if self.held_bytes + size > self._limit:
            raise LogUnavailable(
                f"no room for {path} of {size} bytes: all of {self._limit} is being read; "
                "try again, or raise --cache-bytes"
            )

    def _forget(self, transfer: Transfer) -> None:
        if self._transfers.get(transfer.path) is transfer:
            del self._transfers[transfer.path]

    def _missed(self, path: str) -> bool:
        return self._misses.get(path, 0.0) > asyncio.get_running_loop().time()

    def _remember_miss(self, path: str) -> None:
        self._misses[path] = asyncio.get_running_loop().time() + _FRESH
        self._misses.move_to_end(path)
        while len(self._misses) > _MISSES:
            self._misses.popitem(last=False)
