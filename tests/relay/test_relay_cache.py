"""The relay's cache by itself, over an upstream in memory, in one event loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager

import pytest
from blake3 import blake3
from relay_parts import chain, step

from hilosync.errors import ChainBroken, HiLoError, LogUnavailable, MalformedRecord
from hilosync.relay import Cache, Download, Transfer, Verifier

LIMIT = 30.0


class MemoryUpstream:
    """Objects in a dict, handed on in pieces of 10 kB; each piece waits for the gate."""

    url = "memory:upstream"

    def __init__(self):
        self.objects: dict[str, bytes] = {}
        self.opened: Counter[str] = Counter()
        self.gate = asyncio.Event()
        self.gate.set()

    @asynccontextmanager
    async def open(self, path, wait=0.0, offset=0, tag=None):
        content = self.objects.get(path)
        if content is None:
            yield None
            return
        self.opened[path] += 1
        yield Download(len(content), self._pieces(content), tag="one")

    async def _pieces(self, content: bytes):
        for start in range(0, len(content), 10_000):
            yield content[start : start + 10_000]
            await self.gate.wait()

    async def size(self, path):
        return None if path not in self.objects else len(self.objects[path])

    async def close(self):
        pass


def named(content: bytes) -> str:
    return f"blobs/{blake3(content).hexdigest()}"


async def whole(cache: Cache, path: str, wait: float = 0.0) -> bytes | None:
    async with asyncio.timeout(LIMIT), cache.reading(path, wait) as transfer:
        return None if transfer is None else await rest_of(transfer)


async def rest_of(transfer: Transfer) -> bytes:
    content = b""
    while len(content) < transfer.size:
        content += await transfer.read(len(content))
    return content


def run(story) -> None:
    """Runs a coroutine function that gets an upstream, in an event loop of its own."""

    async def within() -> None:
        await story(MemoryUpstream())

    asyncio.run(within())


def test_fifty_readers_at_once_make_one_request(rng):
    content = rng.bytes(200_000)

    async def story(upstream):
        upstream.objects[named(content)] = content
        cache = Cache(upstream, 1 << 20)
        assert await asyncio.gather(*(whole(cache, named(content)) for _ in range(50))) == [content] * 50
        assert upstream.opened == {named(content): 1}
        await cache.close()

    run(story)


@pytest.mark.parametrize("store_and_forward", [False, True])
def test_a_piece_is_passed_on_at_once_unless_all_is_stored_first(rng, store_and_forward):
    content = rng.bytes(200_000)

    async def story(upstream):
        upstream.objects[named(content)] = content
        upstream.gate.clear()
        cache = Cache(upstream, 1 << 20, store_and_forward)
        async with cache.reading(named(content), 0.0) as transfer:
            first = asyncio.create_task(transfer.read(0))
            done, _ = await asyncio.wait({first}, timeout=0.2)
            assert bool(done) is not store_and_forward
            upstream.gate.set()
            assert (await first)[:10_000] == content[:10_000]
            assert await rest_of(transfer) == content
        await cache.close()

    run(story)


def test_the_least_recently_used_object_gives_way_but_never_one_that_is_read(rng):
    contents = [rng.bytes(300_000) for _ in range(4)]
    paths = [named(content) for content in contents]

    async def story(upstream):
        upstream.objects |= dict(zip(paths, contents, strict=True))
        cache = Cache(upstream, 1_000_000)
        for path in paths[:3]:
            await whole(cache, path)
        await whole(cache, paths[0])
        await whole(cache, paths[3])
        assert cache.held_bytes == 900_000
        await whole(cache, paths[0])
        assert upstream.opened == dict.fromkeys(paths, 1)
        await whole(cache, paths[1])
        assert upstream.opened[paths[1]] == 2
        async with cache.reading(paths[0], 0.0), cache.reading(paths[1], 0.0), cache.reading(paths[3], 0.0):
            with pytest.raises(LogUnavailable, match=r"no room for .*: all of 1000000 is being read"):
                await whole(cache, paths[2])
        assert await whole(cache, paths[2]) == contents[2]
        await cache.close()

    run(story)


def test_an_object_that_does_not_fit_is_refused_before_room_is_made_for_it(rng):
    content = rng.bytes(2000)

    async def story(upstream):
        upstream.objects[named(content)] = content
        cache = Cache(upstream, 1000)
        with pytest.raises(LogUnavailable, match="has 2000 bytes: expected at most 1000; raise --cache-bytes"):
            await whole(cache, named(content))
        assert cache.held_bytes == 0
        await cache.close()

    run(story)


def test_who_does_not_wait_is_answered_while_others_wait():
    async def story(upstream):
        cache = Cache(upstream, 1 << 20)
        waiting = asyncio.create_task(whole(cache, step(1), wait=LIMIT))
        await asyncio.sleep(0.05)
        assert await whole(cache, step(1)) is None
        assert await whole(cache, step(1), wait=0.1) is None
        assert not waiting.done()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await cache.close()

    run(story)


def test_who_waits_gets_what_comes_also_after_others_have_given_up(rng):
    frames = chain(rng, [50_000])

    async def story(upstream):
        cache = Cache(upstream, 1 << 20)
        assert await whole(cache, step(1)) is None
        assert await whole(cache, step(1), wait=0.05) is None
        waiting = [asyncio.create_task(whole(cache, step(1), wait=LIMIT)) for _ in range(3)]
        await asyncio.sleep(0.1)
        upstream.objects[step(1)] = frames[1]
        assert await asyncio.gather(*waiting) == [frames[1]] * 3
        assert upstream.opened[step(1)] == 1
        await cache.close()

    run(story)


@pytest.mark.parametrize("where", ["first", "last"])
def test_of_a_damaged_object_nobody_gets_all_and_the_next_reader_gets_it_anew(rng, where):
    content = rng.bytes(100_000)
    damaged = bytes([content[0] ^ 1]) + content[1:] if where == "first" else content[:-1] + bytes([content[-1] ^ 1])

    async def story(upstream):
        upstream.objects[named(content)] = damaged
        cache = Cache(upstream, 1 << 20)
        got = await asyncio.gather(*(whole(cache, named(content)) for _ in range(5)), return_exceptions=True)
        assert all(isinstance(answer, MalformedRecord) for answer in got)
        assert (cache.counts["dropped"], cache.held_bytes) == (1, 0)
        upstream.objects[named(content)] = content
        assert await whole(cache, named(content)) == content
        await cache.close()

    run(story)


def test_a_mark_is_asked_for_again_after_half_a_second():
    async def story(upstream):
        upstream.objects["steps/oldest"] = b"3"
        cache = Cache(upstream, 1 << 20)
        assert await whole(cache, "steps/oldest") == await whole(cache, "steps/oldest") == b"3"
        assert upstream.opened["steps/oldest"] == 1
        upstream.objects["steps/oldest"] = b"7"
        await asyncio.sleep(0.6)
        assert await whole(cache, "steps/oldest") == b"7"
        await cache.close()

    run(story)


def test_an_empty_object_is_an_object():
    async def story(upstream):
        upstream.objects[named(b"")] = b""
        cache = Cache(upstream, 1 << 20)
        assert await whole(cache, named(b"")) == b""
        await cache.close()

    run(story)


def test_a_record_must_be_what_its_name_says_and_follow_the_one_before(rng):
    frames, others = chain(rng, [10, 10, 10]), chain(rng, [10, 10, 10])
    verifier = Verifier()
    verifier.check(step(0), frames[0])
    verifier.check(step(1), frames[1])
    with pytest.raises(MalformedRecord, match=r"another object in the place of steps/0*2: it calls itself version 3"):
        verifier.check(step(2), frames[3])
    with pytest.raises(ChainBroken, match="record 2 does not follow record 1"):
        verifier.check(step(2), others[2])
    verifier.check(step(2), frames[2])
    verifier.check(step(2), frames[2])
    with pytest.raises(HiLoError):
        verifier.check(step(3), frames[3][:-1])
