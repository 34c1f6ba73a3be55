"""The pieces of an object, fetched beside one another and handed on in order while they come."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable

from hilosync.errors import LogUnavailable
from hilosync.log.pieces import WAYS

__all__ = ["LONGEST_PIECE", "in_order"]

LONGEST_PIECE = 1 << 20
"""Bytes of a piece at most: of eight pieces that share a link, the first is whole only when all nearly are."""

_Piece = Callable[[int, int], AsyncIterator[bytes]]
"""The bytes of an object from one offset to another, as they come. Raises `LogUnavailable`."""


async def in_order(piece: _Piece, pieces: Iterable[tuple[int, int]], silence: float) -> AsyncGenerator[bytes]:
    """An object's bytes in their order, while up to `WAYS` pieces of it are on their way.

    Args:
        piece: gives one of them.
        pieces: where they begin and end, one after the other.
        silence: seconds without the next byte after which the transfer has failed. Pieces further on may be silent
            for longer: a relay that is still receiving the object has them later.

    Raises:
        LogUnavailable: a piece did not come, or was shorter or longer than it should be.
    """
    under_way: deque[tuple[asyncio.Queue[bytes | None], asyncio.Task[None]]] = deque()
    ahead = iter(pieces)
    try:
        while True:
            while len(under_way) < WAYS and (ends := next(ahead, None)) is not None:
                chunks: asyncio.Queue[bytes | None] = asyncio.Queue()
                under_way.append((chunks, asyncio.create_task(_fill(chunks, piece, *ends))))
            if not under_way:
                return
            chunks, task = under_way.popleft()
            try:
                while (chunk := await _next(chunks, silence)) is not None:
                    yield chunk
                await task  # which raises if it failed
            finally:
                task.cancel()
    finally:
        for _, task in under_way:
            task.cancel()
        await asyncio.gather(*(task for _, task in under_way), return_exceptions=True)


async def _fill(chunks: asyncio.Queue[bytes | None], piece: _Piece, start: int, end: int) -> None:
    try:
        async for chunk in piece(start, end):
            start += len(chunk)
            if start > end:
                break
            chunks.put_nowait(chunk)
        if start != end:
            raise LogUnavailable(f"a piece that should end at byte {end} ended at byte {start}; try again")
    finally:
        chunks.put_nowait(None)


async def _next(chunks: asyncio.Queue[bytes | None], silence: float) -> bytes | None:
    try:
        async with asyncio.timeout(silence):
            return await chunks.get()
    except TimeoutError as error:
        raise LogUnavailable(f"no byte within {silence:g} s; check the upstream") from error
