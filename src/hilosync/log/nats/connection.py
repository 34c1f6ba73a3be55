"""A blocking connection to a NATS server: ask, and have an answer within a limit.

The client library works in an event loop, which runs in a thread of its own. It is not left to
reconnect by itself, since it then neither fails what is under way nor says what became of it: here a
connection lives or has ended, and whoever asks makes the next one. Every question that is asked
through here may therefore reach the server twice.
"""

from __future__ import annotations

import asyncio
import math
import socket
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from hilosync.errors import ConfigurationError, LogUnavailable, LogUnreachable
from hilosync.log.nats.address import NatsAddress

__all__ = ["Answer", "Connection"]

_CONNECT_LIMIT, _CLOSE_LIMIT = 10.0, 1.0
_PING_EVERY, _PINGS_UNANSWERED = 20, 3  # on a slow link the answer to a ping queues behind megabytes
_PAUSE, _LONGEST_PAUSE = 0.02, 1.0
_PENDING = 64 << 20
_SOCKET_OPTIONS = (
    ("TCP_USER_TIMEOUT", 20_000),  # ms without an acknowledgement
    ("TCP_KEEPIDLE", 10),  # s without a word, after which one is asked for
    ("TCP_KEEPINTVL", 5),
    ("TCP_KEEPCNT", 3),
)

Result = TypeVar("Result")


@dataclass(frozen=True)
class Answer:
    """A message from the server.

    Attributes:
        data: its payload.
        headers: its headers; ``Status`` is there if the server reports one instead of a message.
    """

    data: bytes
    headers: dict[str, str]


@dataclass(frozen=True)
class _Failure:
    """Why an attempt failed; another may not.

    Attributes:
        reason: in a few words.
        unanswered: whether that is because nobody listens to the subject.
    """

    reason: str
    unanswered: bool = False


class Connection:
    """A connection that is made when it is needed and ends when nobody holds it any more.

    Raises:
        ConfigurationError: nats-py is not installed, or the address names a file that is not there.
        LogUnreachable: no server answers.
        LogUnavailable: it refuses the credentials.
    """

    def __init__(self, address: NatsAddress):
        self.address = address
        self._link = _Link(address)
        self._finalizer = weakref.finalize(self, self._link.shut)
        client = self._link.run(self._link.connected(), _CONNECT_LIMIT + 5.0)
        if isinstance(client, _Failure):
            raise LogUnreachable(
                f"{address.url}: cannot connect: {client.reason}; start the server, or check the address"
            )

    @property
    def server(self) -> dict[str, Any]:
        """What the server has told about itself."""
        return self._link.server

    def ask(
        self,
        doing: str,
        subject: str,
        data: bytes = b"",
        headers: dict[str, str] | None = None,
        patience: float = math.inf,
        gone: Callable[[], bool] | None = None,
    ) -> Answer:
        """Sends a message and waits for the answer; after a lost connection it is sent again.

        Args:
            doing: what this is for, for messages: ``read version 3``.
            subject: where to send it.
            data: the payload.
            headers: of the message.
            patience: seconds of silence after which it is sent again: a cluster without a leader drops questions.
            gone: asked when nobody listens to the subject: True if waiting is pointless.

        Raises:
            LogUnreachable: no answer within the address's `timeout`.
            LogUnavailable: the server refuses, or has no such stream.
        """
        limit = self.address.timeout
        deadline, pause = time.monotonic() + limit, _PAUSE
        while True:
            remaining = max(deadline - time.monotonic(), pause)
            attempt = self._link.attempt(subject, data, headers, remaining, patience)
            answer = self._link.run(attempt, remaining + 1.0)
            if isinstance(answer, Answer):
                return answer
            if answer.unanswered and gone is not None and gone():
                raise LogUnavailable(
                    f"{self.address.url}: cannot {doing}: {answer.reason}; the stream has been removed: begin a new run"
                )
            if time.monotonic() + pause >= deadline:
                raise LogUnreachable(
                    f"{self.address.url}: cannot {doing}: {answer.reason} within {limit:g} s; check the server and the "
                    "network"
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


class _Link:
    """The event loop, its thread and the client in it. It does not know the `Connection` that holds it."""

    def __init__(self, address: NatsAddress):
        self._address = address
        self._options = address.connect_options()
        self._client_class = _client_class()
        self._client: Any = None
        self._ended: asyncio.Future[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._waiting: dict[asyncio.Future[Any], str] = {}
        self.server: dict[str, Any] = {}
        self._loop = asyncio.new_event_loop()
        self._connecting = asyncio.Lock()
        self._thread = threading.Thread(target=self._serve, name="hilosync-nats", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Result], limit: float) -> Result | _Failure:
        """Runs a coroutine in the loop and waits for it."""
        future: Future[Result] = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(limit)
        except TimeoutError:
            return _Failure("no answer")
        finally:
            future.cancel()

    def shut(self) -> None:
        """Closes the connection and ends the thread; at the end of the process it waits for that shortly."""

        def begin() -> None:
            self._closing = self._loop.create_task(self._close())

        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(begin)
        # The collector may run this in any thread, also in the loop's own, which must not wait for itself.
        if threading.current_thread() is threading.main_thread():
            self._thread.join(1.0)

    async def connected(self) -> Any:
        """The client of a living connection, or why there is none."""
        async with self._connecting:
            if self._client is None or self._client.is_closed:
                return await self._connect()
            return self._client

    async def attempt(
        self, subject: str, data: bytes, headers: dict[str, str] | None, limit: float, patience: float
    ) -> Answer | _Failure:
        """Asks once, and waits for the limit or the patience, whichever ends first."""
        import nats.errors

        client = await self.connected()
        if isinstance(client, _Failure):
            return client
        assert self._ended is not None
        ended = self._ended
        refused: asyncio.Future[None] = self._loop.create_future()
        self._waiting[refused] = subject
        request = self._loop.create_task(client.request(subject, data, timeout=limit, headers=headers))
        try:
            await asyncio.wait(
                {request, ended, refused}, timeout=min(limit, patience), return_when=asyncio.FIRST_COMPLETED
            )
            if refused.done():
                refused.result()
            if request.done():
                message = request.result()
                return Answer(message.data, {str(key): value for key, value in (message.headers or {}).items()})
            if ended.done():
                return _Failure("the connection was lost, and no answer came")
            if limit <= patience:
                # An answer that fails to come may mean that the connection is dead and does not know it.
                self._closing = self._loop.create_task(_closed(client))
            return _Failure("no answer")
        except nats.errors.NoRespondersError:
            return _Failure(f"nobody answers on {subject}", unanswered=True)
        except nats.errors.MaxPayloadError as error:
            raise LogUnavailable(
                f"{self._address.url}: {subject}: {len(data)} bytes are more than the server's max_payload; raise it"
            ) from error
        except (OSError, nats.errors.Error) as error:
            return _Failure(_reason(error))
        finally:
            self._waiting.pop(refused, None)
            request.cancel()
            refused.cancel()

    async def _connect(self) -> Any:
        reasons = []
        for server in self._address.servers:
            client, ended, errors = self._client_class(), self._loop.create_future(), []

            async def on_error(error: Exception, errors: list[Exception] = errors) -> None:
                errors.append(error)
                self._refuse(str(error))

            async def on_closed(ended: asyncio.Future[None] = ended) -> None:
                if not ended.done():
                    ended.set_result(None)

            work = client.connect(
                f"{'tls' if self._address.tls else 'nats'}://{server}",
                name="hilosync",
                error_cb=on_error,
                closed_cb=on_closed,
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=_CONNECT_LIMIT,
                ping_interval=_PING_EVERY,
                max_outstanding_pings=_PINGS_UNANSWERED,
                pending_size=_PENDING,
                **self._options,
            )
            try:
                await asyncio.wait_for(work, _CONNECT_LIMIT / len(self._address.servers))
            except BaseException as error:  # the library raises whatever the parts below it do
                await _closed(client)
                if not isinstance(error, Exception):
                    raise
                reasons.append(_reason(errors[0] if errors else error))
                continue
            _notice_silence(client)
            # What the server says of JetStream has no public name in the library.
            self._client, self._ended, self.server = client, ended, dict(client._server_info)
            return client
        reason = "; ".join(dict.fromkeys(reasons))
        if "uthorization" in reason:
            raise LogUnavailable(
                f"{self._address.url}: the server refuses these credentials; give others in the address "
                "(user:password@, token@ or ?creds=FILE) or in HILO_NATS_CREDS, HILO_NATS_TOKEN, "
                "HILO_NATS_USER and HILO_NATS_PASSWORD"
            )
        return _Failure(reason)

    def _refuse(self, message: str) -> None:
        """The server tells a forbidden subject apart from the request, which nobody will answer."""
        text = message.lower()
        if "permissions violation" not in text:
            return
        for refused, subject in self._waiting.items():
            if f'"{subject.lower()}"' in text and not refused.done():
                refused.set_exception(
                    LogUnavailable(f"{self._address.url}: these credentials may not publish to {subject}; use others")
                )

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.close()

    async def _close(self) -> None:
        if self._client is not None:
            await _closed(self._client)
        self._loop.stop()


async def _closed(client: Any) -> None:
    # After a failed TLS handshake the library would wait without an end.
    with suppress(Exception):
        await asyncio.wait_for(client.close(), _CLOSE_LIMIT)


def _notice_silence(client: Any) -> None:
    """Ends a connection over which nothing is acknowledged for a while, as after a cut of the network.

    Otherwise TCP asks ever more rarely, and would take as long again to notice that the network is back. The
    library gives its socket no public name.
    """
    writer = getattr(getattr(client, "_transport", None), "_bare_io_writer", None)
    found = None if writer is None else writer.get_extra_info("socket")
    if found is not None:
        for name, value in _SOCKET_OPTIONS:
            if hasattr(socket, name):
                found.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _client_class() -> Any:
    try:
        from nats.aio.client import Client
    except ImportError as error:
        raise ConfigurationError("a nats: log needs nats-py: pip install 'hilosync[nats]'") from error
    return Client


def _reason(error: BaseException) -> str:
    text = str(error).partition("\n")[0].removeprefix("nats: ")
    return text or type(error).__name__
