"""The objects of a log over HTTP, to be read only: behind a relay, a CDN or any server of files.

http://HOST/PREFIX                         a view: records, blobs and snapshots; nothing can be written
http://HOST/PREFIX+s3://BUCKET/PREFIX      reads come by HTTP; writes and the mailbox use the second log
"""

from __future__ import annotations

import atexit
import random
import re
import time
from functools import cache
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

from hilosync.errors import ConfigurationError, LogUnavailable, LogUnreachable, Truncated
from hilosync.log.objects import LARGEST_OBJECT, Objects
from hilosync.log.polling import Polling
from hilosync.log.refusals import leave_body, refusal_of
from hilosync.log.snapshots import INDEX, versions_in

__all__ = ["HTTP_POLLING", "LONGEST_WAIT", "SILENCE", "HttpObjects", "base_address", "split_view"]

HTTP_POLLING = Polling(shortest=0.05, longest=1.0, jitter=0.2)
"""For servers that do not wait by themselves, as a relay does."""

LONGEST_WAIT = 20.0
"""Seconds for which a server is asked to hold a request back until there is something to say."""

SILENCE = 30.0
"""Seconds without a byte after which a request has failed."""

_CONNECT = 10.0
_ATTEMPTS = 4
_TRANSFER = 3600.0
"""Seconds within which an object must have come, however often its transfer broke off."""

_BROKEN = (500, 502, 503, 504)
"""Answers after which the same request may succeed."""


class HttpObjects(Objects):
    """Objects that a server gives out under their names.

    A transfer that breaks off is taken up again where it stopped, if the server still has the same object.
    """

    def __init__(self, url: str):
        """Args: url: the address without a slash at its end, as `base_address` returns it."""
        self.url = url
        with _making:  # of two that are made at once, one would be dropped with its connections open
            self._client = _client()

    def get(self, path: str) -> bytes | None:
        """See `Objects.get`."""
        return self._fetch(path, 0.0)

    def exists(self, path: str) -> bool:
        """See `Objects.exists`."""
        return self._attempts(path, lambda: self._look(path))

    def wait_for(self, path: str, polling: Polling, wait: float) -> bytes | None:
        """See `Objects.wait_for`. A server that understands `Prefer: wait` answers as soon as the object is there."""
        deadline = time.monotonic() + wait

        def ask() -> bytes | None:
            while True:
                started = time.monotonic()
                asked = max(0.0, min(deadline - started, LONGEST_WAIT))
                content = self._fetch(path, asked)
                # A server that has held the request back can be asked again at once.
                if content is not None or not 0.5 < asked <= 2 * (time.monotonic() - started):
                    return content

        return polling.until(ask, wait)

    def names(self, folder: str) -> list[str]:
        """Names of the snapshots by their index; of the records none, since HTTP has no listing.

        Raises:
            ConfigurationError: any other folder.
        """
        if folder == "snapshots":
            return [f"{version:020d}" for version in versions_in(self.get(INDEX), self.url)]
        if folder == "steps":
            return []
        raise self._read_only()

    def create(self, path: str, content: bytes, durable: bool = False) -> bool:
        """Raises: ConfigurationError: always."""
        raise self._read_only()

    def replace(self, path: str, content: bytes, durable: bool = False) -> None:
        """Raises: ConfigurationError: always."""
        raise self._read_only()

    def remove(self, path: str) -> None:
        """Raises: ConfigurationError: always."""
        raise self._read_only()

    def _read_only(self) -> ConfigurationError:
        return ConfigurationError(
            f"{self.url} is a view that can only be read: name the log that takes writes and rollouts behind it, "
            f"{self.url}+s3://BUCKET/PREFIX"
        )

    def _fetch(self, path: str, wait: float) -> bytes | None:
        transfer = _Transfer(path)
        return self._attempts(path, lambda: self._receive(transfer, wait))

    def _attempts(self, path: str, request: Any) -> Any:
        """Repeats a request that failed on its way, as long as repeating can help."""
        import httpx2

        deadline = time.monotonic() + _TRANSFER
        for attempt in range(_ATTEMPTS):
            try:
                return request()
            except httpx2.TransportError as error:
                if attempt == _ATTEMPTS - 1 or time.monotonic() > deadline:
                    raise LogUnreachable(f"{self.url}: cannot read {path}: {_reason(error)}") from error
            except httpx2.HTTPError as error:
                raise LogUnavailable(f"{self.url}: cannot read {path}: {_reason(error)}") from error
            time.sleep(2**attempt * random.uniform(0.1, 0.2))
        raise AssertionError("unreachable")

    def _look(self, path: str) -> bool:
        response = self._client.head(f"{self.url}/{path}")
        if response.status_code in (404, 410):
            return False
        self._check(path, response)
        return True

    def _receive(self, transfer: _Transfer, wait: float) -> bytes | None:
        headers = transfer.resume()
        if wait > 0.5:
            headers["Prefer"] = f"wait={wait:.0f}"
        timeout = {"connect": _CONNECT, "read": SILENCE + wait, "write": SILENCE, "pool": SILENCE}
        import httpx2

        with self._client.stream(
            "GET", f"{self.url}/{transfer.path}", headers=headers, timeout=httpx2.Timeout(**timeout)
        ) as response:
            if response.status_code == 404:
                return None
            if response.status_code == 410:
                raise Truncated(f"{self.url}: {transfer.path} has been removed; start from a snapshot")
            self._check(transfer.path, response)
            transfer.begin(response.status_code, response.headers, self.url)
            for chunk in response.iter_raw():
                transfer.add(chunk)
        return transfer.finish()

    def _check(self, path: str, response: Any) -> None:
        status = response.status_code
        if status in _BROKEN or status == 429:
            raise _broken(f"the server said {status}{refusal_of(response)}")
        if status not in (200, 206):
            advice = {
                401: "it wants credentials, which a view has none of",
                403: "a bucket says so of a missing object too, unless its reader may list it",
                416: "the object has changed",
            }.get(status, "check the address and the server")
            raise LogUnavailable(f"{self.url}: cannot read {path}: the server said {status}; {advice}")


_making = Lock()


@cache
def _client() -> Any:
    """One client for all views: it keeps connections open, and reading the system's certificates takes a while."""
    import httpx2

    client = httpx2.Client(
        timeout=httpx2.Timeout(SILENCE, connect=_CONNECT),
        headers={"Accept-Encoding": "identity"},
        follow_redirects=True,
        max_redirects=3,
        event_hooks={"response": [leave_body]},
    )
    atexit.register(client.close)
    return client


class _Transfer:
    """The bytes of one object, over as many requests as they take."""

    def __init__(self, path: str):
        self.path = path
        self._content = bytearray()
        self._size: int | None = None
        self._tag: str | None = None
        self._deadline = time.monotonic() + _TRANSFER

    def resume(self) -> dict[str, str]:
        """Headers that ask for what is still missing, if the object is the same; all of it otherwise."""
        if self._content and self._tag:
            return {"Range": f"bytes={len(self._content)}-", "If-Range": self._tag}
        return {}

    def begin(self, status: int, headers: Any, url: str) -> None:
        """Takes the answer's headers, before any of its bytes."""
        if status == 200:
            self._content.clear()
            size = headers.get("Content-Length", "")
        else:
            first, _, size = headers.get("Content-Range", "").partition("/")
            if first.partition("-")[0] != f"bytes {len(self._content)}":
                self._tag = None
                raise _broken("the server sent another part than it was asked for")
        self._tag = headers.get("ETag")
        # Without a length the end of the connection is the end of the object, and the reader's hash tells.
        self._size = int(size) if re.fullmatch(r"\d{1,15}", size) else None
        if self._size is not None and self._size > LARGEST_OBJECT:
            raise LogUnavailable(
                f"{url}: {self.path} has {self._size} bytes: expected at most {LARGEST_OBJECT}; it is no part of a log"
            )

    def add(self, chunk: bytes) -> None:
        """Takes the next bytes."""
        self._content += chunk
        if len(self._content) > (LARGEST_OBJECT if self._size is None else self._size):
            self._content.clear()
            raise _broken("the server sent more than it announced")
        if time.monotonic() > self._deadline:
            raise _broken(f"not all of it has come within {_TRANSFER:.0f} s")

    def finish(self) -> bytes:
        """The whole object."""
        if self._size is not None and len(self._content) < self._size:
            raise _broken(f"the transfer broke off after {len(self._content)} of {self._size} bytes")
        return bytes(self._content)


def base_address(scheme: str, rest: str) -> str:
    """The address under which a view's objects lie.

    Raises:
        ConfigurationError: no host, or something that does not belong there. The address is not repeated
            then, since it may hold a secret.
    """
    try:
        parts = urlsplit(f"{scheme}:{rest}")
    except ValueError as error:
        raise ConfigurationError(f"{scheme}: address: {error}: expected {scheme}://HOST/PREFIX") from None
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ConfigurationError(
            f"{scheme}: address: expected {scheme}://HOST/PREFIX without credentials or parameters"
        )
    if not parts.hostname:
        raise ConfigurationError(f"{scheme}: log address without a host: expected {scheme}://HOST/PREFIX")
    return f"{scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def split_view(rest: str) -> tuple[str, str | None]:
    """What follows `http:` as the view's own part, and the address of the log behind it if there is one."""
    match = re.fullmatch(r"(.*?)\+([a-z][a-z0-9]*:.*)", rest)
    return (match[1], match[2]) if match else (rest, None)


def _broken(what: str) -> Exception:
    """What the next attempt may better is an error of the transport, like those that the library finds itself."""
    import httpx2

    return httpx2.RemoteProtocolError(what)


def _reason(error: BaseException) -> str:
    import httpx2

    if isinstance(error, httpx2.RemoteProtocolError):
        return f"{error}; try again"
    if isinstance(error, httpx2.TimeoutException):
        return f"no answer within {SILENCE:.0f} s; check the network and the server"
    if isinstance(error, httpx2.ConnectError):
        return "it cannot be reached; check the address, the network and the server"
    return f"the connection failed ({type(error).__name__}); try again"
