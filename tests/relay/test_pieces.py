"""Objects that come in pieces beside one another."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from itertools import pairwise

import pytest
from blake3 import blake3
from obstore.store import LocalStore

from hilosync.errors import LogUnavailable
from hilosync.log.pieces import FIRST_PIECE, WAYS, cut
from hilosync.relay.pieces import in_order
from hilosync.relay.upstream import StoreUpstream

LIMIT = 30.0


@pytest.mark.parametrize("start", [0, 1, 99_999, 2_231_368])
@pytest.mark.parametrize("size", [2_231_369, 139_460_608])
def test_pieces_cover_the_rest_of_an_object_without_gap_or_overlap(start, size):
    pieces = cut(start, size, 1 << 20)
    assert pieces[0][0] == start and pieces[-1][1] == size
    assert all(end == after for (_, end), (after, _) in pairwise(pieces))
    assert all(0 < end - first <= 1 << 20 for first, end in pieces)


def test_an_object_of_a_record_s_size_comes_over_all_ways_at_once():
    assert len(cut(0, 2_231_369)) == WAYS
    assert cut(0, 1000) == [(0, 1000)] and cut(0, FIRST_PIECE) == [(0, FIRST_PIECE)]


def collect(piece, pieces, silence: float = LIMIT) -> bytes:
    async def within() -> bytes:
        content = b""
        async with asyncio.timeout(LIMIT), aclosing(in_order(piece, pieces, silence)) as chunks:
            try:
                async for chunk in chunks:
                    content += chunk
            finally:
                await chunks.aclose()
                assert asyncio.all_tasks() == {asyncio.current_task()}
        return content

    return asyncio.run(within())


def test_pieces_are_handed_on_in_order_however_they_come(rng):
    content = rng.bytes(2000)
    under_way, most = 0, 0

    async def piece(start: int, end: int):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(float(rng.uniform(0, 0.01)))
        for first in range(start, end, 30):
            yield content[first : min(first + 30, end)]
            await asyncio.sleep(0)
        under_way -= 1

    assert collect(piece, [(first, first + 100) for first in range(0, 2000, 100)]) == content
    assert most == WAYS


@pytest.mark.parametrize("length", [0, 99, 101])
def test_a_piece_of_another_length_fails_the_transfer(length):
    async def piece(start: int, end: int):
        yield bytes(length if start == 100 else 100)

    with pytest.raises(LogUnavailable, match="a piece that should end at byte 200"):
        collect(piece, [(0, 100), (100, 200), (200, 300)])


def test_a_piece_that_fails_fails_the_transfer():
    async def piece(start: int, end: int):
        yield bytes(50)
        if start:
            raise LogUnavailable("the link broke")
        yield bytes(50)

    with pytest.raises(LogUnavailable, match="the link broke"):
        collect(piece, [(0, 100), (100, 200)])


def test_silence_fails_the_transfer():
    async def piece(start: int, end: int):
        yield bytes(50)
        await asyncio.sleep(LIMIT)

    with pytest.raises(LogUnavailable, match=r"no byte within 0\.05 s"):
        collect(piece, [(0, 100), (100, 200)], silence=0.05)


def test_an_object_of_a_bucket_comes_in_pieces(tmp_path, rng, monkeypatch):
    content = rng.bytes(2_000_000)
    path = f"blobs/{blake3(content).hexdigest()}"
    (tmp_path / "blobs").mkdir()
    (tmp_path / path).write_bytes(content)
    upstream = StoreUpstream(LocalStore(tmp_path), "s3://none", str)
    monkeypatch.setattr(upstream, "_local", False)

    async def read(offset: int, tag: str | None) -> tuple[bytes, int, str | None]:
        async with upstream.open(path, offset=offset, tag=tag) as download:
            assert download is not None and download.size == len(content)
            return b"".join([chunk async for chunk in download.chunks]), download.offset, download.tag

    async def story() -> None:
        whole, offset, tag = await read(0, None)
        assert (whole, offset) == (content, 0)
        assert await read(700_000, tag) == (content[700_000:], 700_000, tag)
        assert await read(700_000, "another") == (content, 0, tag)
        async with upstream.open("blobs/" + 64 * "0") as download:
            assert download is None

    asyncio.run(story())
