"""The relay's HTTP side: objects under their names, `/healthz` and `/metrics` for whoever watches over it."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hilosync.errors import ConfigurationError, HiLoError
from hilosync.log.http import LONGEST_WAIT
from hilosync.relay.cache import Cache
from hilosync.relay.circles import LOOP
from hilosync.relay.transfer import Transfer
from hilosync.relay.verification import is_immutable, is_mark

if TYPE_CHECKING:
    from starlette.applications import Starlette

__all__ = ["application", "serve"]

_logger = logging.getLogger(__name__)

_SENDING = 60.0
"""Seconds within which a reader must take the next piece."""

_KEEP = "public, max-age=31536000, immutable"
_ASK = "no-cache"
_NEVER = "no-store"

_IN_VAIN = 503
_LOOP = 508


class _Objects:
    """An ASGI application: GET and HEAD of objects by name."""

    def __init__(self, cache: Cache, served: Counter[str]):
        self._cache = cache
        self._served = served

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"].lstrip("/")
        if scope["method"] not in ("GET", "HEAD"):
            await _answer(send, 405, "only GET and HEAD: a relay cannot be written to")
        elif not is_immutable(path) and not is_mark(path):
            await _answer(send, 404, "no object of a log has this name")
        elif self._cache.would_wait_for_itself(_headers(scope).get(LOOP.lower(), "")):
            await _answer(send, _LOOP, "this relay is its own upstream, directly or through others")
        elif scope["method"] == "HEAD":
            await self._head(path, send)
        else:
            await _until_gone(self._get(path, scope, send), receive)

    async def _head(self, path: str, send: Any) -> None:
        try:
            size = await self._cache.size(path)
        except HiLoError as error:
            await _answer(send, _IN_VAIN, str(error))
            return
        if size is None:
            await _answer(send, 404)
        else:
            await _start(send, 200, {"content-length": str(size), "cache-control": _keeping(path)})
            await send({"type": "http.response.body"})

    async def _get(self, path: str, scope: Any, send: Any) -> None:
        headers = _headers(scope)
        wait = _preferred_wait(headers.get("prefer", "")) if path.startswith("steps/") else 0.0
        try:
            async with self._cache.reading(path, wait) as transfer:
                if transfer is None:
                    await _answer(send, 404)
                    return
                await self._stream(path, transfer, *_extent(headers, transfer), send)
        except HiLoError as error:
            await _answer(send, _IN_VAIN, str(error))

    async def _stream(self, path: str, transfer: Transfer, offset: int, end: int, partial: bool, send: Any) -> None:
        # An answer cannot be taken back once it has begun: where nothing can be sent yet, wait for the verdict.
        first = await transfer.read(offset, end) if offset < end else b""
        fields = {
            "content-length": str(end - offset),
            "content-type": "application/octet-stream",
            "cache-control": _keeping(path),
            "accept-ranges": "bytes",
            "etag": transfer.tag,
        }
        if partial:
            fields["content-range"] = f"bytes {offset}-{end - 1}/{transfer.size}"
        await _start(send, 206 if partial else 200, fields)
        while True:
            message = {"type": "http.response.body", "body": first, "more_body": offset + len(first) < end}
            async with asyncio.timeout(_SENDING):
                await send(message)
            offset += len(first)
            self._served["bytes"] += len(first)
            if offset >= end:
                break
            try:
                first = await transfer.read(offset, end)
            except HiLoError:
                # The server closes a connection whose answer remains short, and the reader sees that.
                self._served["broken off"] += 1
                return
        if end == transfer.size:
            self._served[path.partition("/")[0]] += 1


def application(cache: Cache, upstream: str) -> Starlette:
    """The ASGI application that serves a cache.

    Args:
        cache: what to serve; closed with the application.
        upstream: the upstream's address, for `/healthz`.
    """
    from contextlib import asynccontextmanager

    from starlette.applications import Starlette
    from starlette.responses import JSONResponse, PlainTextResponse
    from starlette.routing import Mount, Route

    served: Counter[str] = Counter()

    async def health(request: Any) -> JSONResponse:
        return JSONResponse(
            {
                "upstream": upstream,
                "objects": cache.held_objects,
                "bytes": cache.held_bytes,
                "upstream_requests": dict(cache.counts),
                "served": dict(served),
            },
            headers={"cache-control": _NEVER},
        )

    async def metrics(request: Any) -> PlainTextResponse:
        return PlainTextResponse(_exposition(cache, served), headers={"cache-control": _NEVER})

    @asynccontextmanager
    async def lifespan(_: Any):
        yield
        await cache.close()

    return Starlette(
        routes=[Route("/healthz", health), Route("/metrics", metrics), Mount("/", app=_Objects(cache, served))],
        lifespan=lifespan,
    )


def serve(
    make_cache: Callable[[], Cache],
    upstream: str,
    host: str,
    port: int,
    *,
    listening: Callable[[str], None],
    certificate: str | None = None,
    key: str | None = None,
) -> None:
    """Serves until the process is told to end.

    Args:
        make_cache: makes the cache, in the event loop that it will live in.
        upstream: the upstream's address, for `/healthz`.
        host: address to listen on.
        port: port to listen on; 0 for any that is free.
        listening: told the relay's own address once it listens.
        certificate: PEM file, to serve HTTPS.
        key: PEM file of the certificate's key.

    Raises:
        ConfigurationError: the extra is not installed, the address is taken, or the certificate cannot be used.
    """
    try:
        import starlette  # noqa: F401
        import uvicorn
    except ImportError as error:
        raise ConfigurationError("a relay needs starlette and uvicorn: pip install 'hilosync[relay]'") from error

    async def run() -> None:
        config = uvicorn.Config(
            application(make_cache(), upstream),
            log_level="critical",
            access_log=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=3,
            ssl_certfile=certificate,
            ssl_keyfile=key,
            server_header=False,
        )
        try:
            config.load()
        except OSError as error:
            raise ConfigurationError(f"the certificate cannot be used: {error.strerror or error}") from error
        listener = _listener(host, port)
        name = f"[{host}]" if ":" in host else host
        listening(f"{'https' if certificate else 'http'}://{name}:{listener.getsockname()[1]}")
        await uvicorn.Server(config).serve(sockets=[listener])

    asyncio.run(run())


def _listener(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another with --listen"
        ) from error
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # Closing a connection waits for what is still to be sent: only the kernel ends one whose reader takes nothing.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * _SENDING))
    return listener


def _exposition(cache: Cache, served: Counter[str]) -> str:
    """The counters in Prometheus' text format."""
    counters = {
        "bytes": served["bytes"],
        "hits": cache.counts["hits"],
        "misses": cache.counts["fetched"],
        "upstream_bytes": cache.counts["fetched_bytes"],
        "upstream_failures": cache.counts["failed"],
        "dropped": cache.counts["dropped"],
    }
    lines = [
        f"# TYPE hilo_relay_{name}_total counter\nhilo_relay_{name}_total {value}\n" for name, value in counters.items()
    ]
    for name, value in (("held_bytes", cache.held_bytes), ("held_objects", cache.held_objects)):
        lines.append(f"# TYPE hilo_relay_{name} gauge\nhilo_relay_{name} {value}\n")
    return "".join(lines)


async def _until_gone(work: Any, receive: Any) -> None:
    """Runs the work until it is done or its client has disconnected."""

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
        if not working.done():
            working.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)
    error = None if working.cancelled() else working.exception()
    if isinstance(error, TimeoutError):
        return  # a reader that took nothing for too long: its connection is closed over the unfinished answer
    if error is not None:
        _logger.error("a request failed", exc_info=error)


def _headers(scope: Any) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


async def _start(send: Any, status: int, headers: dict[str, str]) -> None:
    encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})


async def _answer(send: Any, status: int, text: str = "") -> None:
    content = text.encode()
    headers = {"content-length": str(len(content)), "content-type": "text/plain; charset=utf-8"}
    if status == _IN_VAIN:
        headers["retry-after"] = "1"
    # What is missing now may be there in a moment, and no cache may remember otherwise.
    await _start(send, status, headers | {"cache-control": _NEVER})
    await send({"type": "http.response.body", "body": content})


def _keeping(path: str) -> str:
    return _KEEP if is_immutable(path) else _ASK


def _preferred_wait(header: str) -> float:
    """Seconds of a `Prefer: wait=` header (RFC 7240), within the limit."""
    match = re.search(r"\bwait=(\d{1,4})\b", header)
    return min(float(match[1]), LONGEST_WAIT) if match else 0.0


def _extent(headers: dict[str, str], transfer: Transfer) -> tuple[int, int, bool]:
    """Where the answer begins and ends, and whether it is a part of the object.

    A part is given only of the very copy that its reader has the beginning of, or of any if it has nothing yet.
    """
    size = transfer.size or 0
    match = re.fullmatch(r"bytes=(\d{1,15})-(\d{0,15})", headers.get("range", ""))
    if match is None or headers.get("if-range", transfer.tag if int(match[1]) == 0 else "") != transfer.tag:
        return 0, size, False
    offset, end = int(match[1]), min(int(match[2]) + 1, size) if match[2] else size
    return (offset, end, True) if offset < end else (0, size, False)
