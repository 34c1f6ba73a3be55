"""Where a relay's objects come from: a store of objects, or another HTTP server, in both cases as a stream."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, MemoryStore

from hilosync.errors import ConfigurationError, LogUnavailable
from hilosync.log import open_objects, parse_address
from hilosync.log.http import LONGEST_WAIT, SILENCE, HttpObjects
from hilosync.log.objects import LARGEST_OBJECT
from hilosync.log.pieces import FIRST_PIECE, WAYS, cut
from hilosync.log.refusals import leave_body_async, refusal_of_async
from hilosync.relay.circles import PassedRelays
from hilosync.relay.pieces import LONGEST_PIECE, in_order
from hilosync.relay.verification import is_immutable

__all__ = ["Download", "HttpUpstream", "StoreUpstream", "Upstream", "open_upstream"]

_CONNECT = 10.0
_CHUNK = 64 << 10
"""Bytes that a store hands on at a time: the latency that a relay adds on a link."""

_LOCAL_CHUNK = 1 << 20
"""Bytes that are read at a time where no link is: the store's own stream of a file has pieces of 8 KiB."""

_LONGEST_PIECE_SECONDS = 120.0
"""Seconds in which a piece of a bucket's object, which comes as a whole, must have come."""


@dataclass
class Download:
    """An object on its way here.

    Attributes:
        size: bytes of the whole object.
        chunks: its bytes from the offset that was asked for.
        tag: names this very copy, so that a transfer can be taken up again; None if the server gives none.
        offset: where the chunks begin.
    """

    size: int
    chunks: AsyncGenerator[bytes]
    tag: str | None = None
    offset: int = 0


class Upstream(Protocol):
    """Objects to be read, as streams. Every call may raise `LogUnavailable`."""

    url: str

    def open(
        self, path: str, wait: float = 0.0, offset: int = 0, tag: str | None = None
    ) -> AbstractAsyncContextManager[Download | None]:
        """The object as a download, or None if there is none.

        Args:
            path: its name.
            wait: seconds that the upstream may take until the object is there; some answer at once.
            offset: bytes to leave out.
            tag: the copy that the offset belongs to; of another copy all bytes come.
        """
        ...

    async def size(self, path: str) -> int | None:
        """The object's size, or None if there is none."""
        ...

    async def close(self) -> None:
        """Closes what is open."""
        ...

    def would_wait_for_itself(self, told: str) -> bool:
        """Whether a request comes, through whatever relays, from this very relay.

        Args:
            told: the request's `LOOP` header, which names the relays that it may have come through.
        """
        ...


class StoreUpstream:
    """Objects of an `obstore` store."""

    def __init__(self, store: Any, url: str, reason: Callable[[BaseException], str]):
        self.url = url
        self._store = store
        self._reason = reason
        self._local = isinstance(store, LocalStore | MemoryStore)

    @asynccontextmanager
    async def open(
        self, path: str, wait: float = 0.0, offset: int = 0, tag: str | None = None
    ) -> AsyncIterator[Download | None]:
        """See `Upstream.open`."""
        download: Download | None = None
        # A local object comes whole. Of others the first piece tells the size, and the rest comes beside it.
        in_pieces = not self._local and is_immutable(path)
        try:
            answer = await self._get(path, offset, in_pieces)
            if offset and answer.meta["e_tag"] != tag:
                offset, answer = 0, await self._get(path, 0, in_pieces)
            size = _bounded(f"{self.url}/{path}", answer.meta["size"])
            if self._local:
                chunks = self._pieces(path, offset, size)
            elif in_pieces:
                chunks = in_order(
                    partial(self._piece, path, answer, offset), cut(offset, size, LONGEST_PIECE), _LONGEST_PIECE_SECONDS
                )
            else:
                chunks = self._chunks(path, answer)
            download = Download(size, chunks, answer.meta["e_tag"], offset)
        except FileNotFoundError:
            pass
        except (BaseError, OSError) as error:
            raise self._unavailable(path, error) from error
        if download is None:
            yield None
        else:
            async with aclosing(download.chunks):
                yield download

    async def size(self, path: str) -> int | None:
        """See `Upstream.size`."""
        try:
            return (await obstore.head_async(self._store, path))["size"]
        except FileNotFoundError:
            return None
        except (BaseError, OSError) as error:
            raise self._unavailable(path, error) from error

    async def close(self) -> None:
        """See `Upstream.close`."""

    def would_wait_for_itself(self, told: str) -> bool:
        """See `Upstream.would_wait_for_itself`. A store reads nothing through relays."""
        return False

    async def _get(self, path: str, offset: int, in_pieces: bool) -> Any:
        options: Any = {"range": {"offset": offset}} if offset else None
        if in_pieces:
            options = {"range": (offset, offset + FIRST_PIECE)}
        return await obstore.get_async(self._store, path, options=options)

    async def _piece(self, path: str, answer: Any, offset: int, start: int, end: int) -> AsyncGenerator[bytes]:
        """One piece; the first is the answer that told the size."""
        try:
            if start == offset:
                yield bytes(await answer.bytes_async())
            else:
                yield bytes(await obstore.get_range_async(self._store, path, start=start, end=end))
        except (BaseError, OSError) as error:
            raise self._unavailable(path, error) from error

    async def _chunks(self, path: str, answer: Any) -> AsyncGenerator[bytes]:
        try:
            async for chunk in answer.stream(min_chunk_size=_CHUNK):
                yield bytes(chunk)
        except (BaseError, OSError) as error:
            raise self._unavailable(path, error) from error

    async def _pieces(self, path: str, start: int, end: int) -> AsyncGenerator[bytes]:
        try:
            while start < end:
                piece = await obstore.get_range_async(
                    self._store, path, start=start, end=min(start + _LOCAL_CHUNK, end)
                )
                start += len(piece)
                yield bytes(piece)
        except (BaseError, OSError) as error:
            raise self._unavailable(path, error) from error

    def _unavailable(self, path: str, error: BaseException) -> LogUnavailable:
        return LogUnavailable(f"{self.url}: cannot read {path}: {self._reason(error)}")


class HttpUpstream:
    """Objects of another relay, or of any HTTP server that has them."""

    def __init__(self, url: str):
        import httpx2

        self.url = url
        self._passed = PassedRelays()
        self._client = httpx2.AsyncClient(
            timeout=httpx2.Timeout(SILENCE, connect=_CONNECT, pool=SILENCE),
            headers={"Accept-Encoding": "identity"},
            limits=httpx2.Limits(max_connections=256, max_keepalive_connections=32),
            follow_redirects=True,
            max_redirects=3,
            event_hooks={"response": [leave_body_async]},
        )

    @asynccontextmanager
    async def open(
        self, path: str, wait: float = 0.0, offset: int = 0, tag: str | None = None
    ) -> AsyncIterator[Download | None]:
        """See `Upstream.open`."""
        import httpx2

        headers = self._passed.headers | ({"If-Range": tag} if offset and tag else {})
        if not tag:
            offset = 0
        if is_immutable(path):  # marks are small, and change
            headers["Range"] = f"bytes={offset}-{offset + FIRST_PIECE - 1}"
        wait = min(wait, LONGEST_WAIT)
        if wait > 0.5:
            headers["Prefer"] = f"wait={wait:.0f}"
        timeout = httpx2.Timeout(SILENCE, connect=_CONNECT, read=SILENCE + wait)
        try:
            async with self._client.stream("GET", f"{self.url}/{path}", headers=headers, timeout=timeout) as response:
                if response.status_code == 404:
                    yield None
                    return
                if response.status_code not in (200, 206):
                    why = f"the server said {response.status_code}{await refusal_of_async(response)}"
                    raise self._unavailable(path, why)
                download = self._download(path, response)
                async with aclosing(download.chunks):
                    yield download
        except httpx2.HTTPError as error:
            raise self._unavailable(path, type(error).__name__) from error

    async def size(self, path: str) -> int | None:
        """See `Upstream.size`."""
        import httpx2

        try:
            response = await self._client.head(f"{self.url}/{path}", headers=self._passed.headers)
        except httpx2.HTTPError as error:
            raise self._unavailable(path, type(error).__name__) from error
        if response.status_code == 404:
            return None
        if response.status_code != 200:
            raise self._unavailable(path, f"the server said {response.status_code}")
        return self._download(path, response).size

    async def close(self) -> None:
        """See `Upstream.close`."""
        await self._client.aclose()

    def would_wait_for_itself(self, told: str) -> bool:
        """See `Upstream.would_wait_for_itself`."""
        return self._passed.include_itself(told)

    def _download(self, path: str, response: Any) -> Download:
        offset, size = self._extent(path, response)
        tag = response.headers.get("ETag")
        if tag is not None and tag.startswith("W/"):
            tag = None  # equal enough to look at, but perhaps other bytes
        if response.status_code == 206:
            piece = partial(self._piece, path, response, offset, size, tag)
            return Download(size, in_order(piece, cut(offset, size, LONGEST_PIECE), SILENCE), tag, offset)
        return Download(size, self._chunks(path, response), tag, offset)

    def _extent(self, path: str, response: Any) -> tuple[int, int]:
        """Where the answer begins in the object, and the object's size."""
        if response.status_code == 206:
            match = re.fullmatch(r"bytes (\d{1,15})-\d{1,15}/(\d{1,15})", response.headers.get("Content-Range", ""))
        else:
            match = re.fullmatch(r"()(\d{1,15})", response.headers.get("Content-Length", ""))
        if match is None:
            raise self._unavailable(path, "the server does not say how long it is")
        return int(match[1] or 0), _bounded(f"{self.url}/{path}", int(match[2]))

    async def _piece(
        self, path: str, answer: Any, offset: int, size: int, tag: str | None, start: int, end: int
    ) -> AsyncGenerator[bytes]:
        """One piece; the first is the answer that told the size."""
        import httpx2

        if start == offset:
            async for chunk in self._chunks(path, answer):
                yield chunk
            return
        headers = self._passed.headers | {"Range": f"bytes={start}-{end - 1}"} | ({"If-Range": tag} if tag else {})
        # A relay that is itself receiving the object has this piece only after the ones before it.
        timeout = httpx2.Timeout(SILENCE, connect=_CONNECT, read=WAYS * SILENCE)
        try:
            async with self._client.stream("GET", f"{self.url}/{path}", headers=headers, timeout=timeout) as response:
                if response.status_code != 206 or self._extent(path, response) != (start, size):
                    raise self._unavailable(path, f"expected a piece of it, the server said {response.status_code}")
                async for chunk in self._chunks(path, response):
                    yield chunk
        except httpx2.HTTPError as error:
            raise self._unavailable(path, type(error).__name__) from error

    async def _chunks(self, path: str, response: Any) -> AsyncGenerator[bytes]:
        import httpx2

        try:
            async for chunk in response.aiter_raw():
                yield chunk
        except httpx2.HTTPError as error:
            raise self._unavailable(path, type(error).__name__) from error

    def _unavailable(self, path: str, why: str) -> LogUnavailable:
        return LogUnavailable(f"{self.url}: cannot read {path}: {why}; check the upstream")


def _bounded(name: str, size: int) -> int:
    """The object's size, unless it is absurd: pieces of that are not even counted."""
    if size > LARGEST_OBJECT:
        raise LogUnavailable(f"{name} has {size} bytes: expected at most {LARGEST_OBJECT}; it is no part of a log")
    return size


def open_upstream(url: str) -> Upstream:
    """The objects of a log, or of a relay.

    Raises:
        ConfigurationError: the log is not made of objects.
        LogNotFound: there is no such log.
        LogUnavailable: the storage refuses.
    """
    objects = open_objects(url)
    if objects is None:
        scheme, _ = parse_address(url)  # the rest of it may hold a secret
        raise ConfigurationError(
            f"{scheme}: a relay needs a log of objects (file, s3, gs, az) or a relay (http, https)"
        )
    if isinstance(objects, HttpObjects):
        return HttpUpstream(objects.url)
    return StoreUpstream(objects.store, objects.url, objects.reason)
