"""From a `nats:` address to a log: streams are made or found, and what is unsafe about them is said."""

from __future__ import annotations

import logging
import re
from typing import Any

from hilosync.errors import ConfigurationError, LogNotFound, LogUnavailable
from hilosync.log.base import Log
from hilosync.log.blobs import ObjectBlobStore
from hilosync.log.mailbox import ObjectMailbox
from hilosync.log.nats.address import NatsAddress, parse_nats_address
from hilosync.log.nats.connection import Connection
from hilosync.log.nats.objects import NatsObjects
from hilosync.log.nats.steps import NatsStepLog
from hilosync.log.nats.stream import Stream
from hilosync.log.polling import Polling
from hilosync.log.snapshots import ObjectSnapshotIndex

__all__ = ["open_nats_log"]

_logger = logging.getLogger("hilosync")

_ENVELOPE = 4096
"""Bytes of a message that are left to its headers."""

_LARGEST_MESSAGE = 4 << 20
"""Bytes beyond which a content is split in any case, so that a slow link carries a message within the limit."""

_ADVISED_PAYLOAD = 8 << 20
_OLDEST_SERVER = (2, 10)

_SUBJECTS = {
    "steps": ("genesis", "steps"),
    "blobs": ("blobs.*.*", "parts.*.*"),
    "notes": ("snapshots.*.*", "orders.*.*", "claims.*.*", "rollouts.*.*", "notices.*.*"),
}
_POLLING = Polling(shortest=0.005, longest=0.1)
_UNLIMITED = ("max_msgs", "max_bytes", "max_age")


def open_nats_log(scheme: str, rest: str, create: bool) -> Log:
    """The log of a run on NATS JetStream; streams are `hilo-RUN-steps`, `hilo-RUN-blobs` and `hilo-RUN-notes`.

    Args:
        scheme: ``nats`` or ``tls``.
        rest: what follows the scheme's colon.
        create: make the streams if they are not there.

    Raises:
        ConfigurationError: the address has another form, or nats-py is not installed.
        LogNotFound: the streams are not there, and `create` is False.
        LogUnavailable: the server does not answer, refuses, or has no JetStream.
    """
    address = parse_nats_address(scheme, rest)
    connection = Connection(address)
    _check_server(connection)
    streams = {name: _stream(connection, name) for name in _SUBJECTS}
    if create:
        _make(streams, address)
    elif streams["notes"].info() is None:  # the last one that is made
        raise LogNotFound(
            f"no run at {address.url}: the server has no such run; start its learner, or check the address"
        )
    if address.hub is not None:
        for name in ("steps", "blobs"):
            _mirror(connection, streams[name], address.hub)
    for stream in streams.values():
        _check_stream(stream)
    largest = min(int(connection.server.get("max_payload", 1 << 20)) - _ENVELOPE, _LARGEST_MESSAGE)
    objects = NatsObjects(address.url, address.run, streams["blobs"], streams["notes"], largest)
    return Log(
        url=address.url,
        steps=NatsStepLog(address.run, streams["steps"], streams["blobs"], largest, _POLLING),
        blobs=ObjectBlobStore(objects),
        snapshots=ObjectSnapshotIndex(objects),
        mailbox=ObjectMailbox(objects, _POLLING),
        polling=_POLLING,
    )


def _stream(connection: Connection, name: str) -> Stream:
    hub = connection.address.hub
    # Records are read from the mirror alone, since whoever waits for one asks often. A blob that the
    # mirror does not have yet is fetched from the hub. Notes change, and are never mirrored.
    reads: dict[str, tuple[str | None, ...]] = {"steps": (None,), "blobs": (None, hub), "notes": (hub,)}
    return Stream(
        connection,
        f"hilo-{connection.address.run}-{name}",
        hub,
        (None,) if hub is None else reads[name],
    )


def _make(streams: dict[str, Stream], address: NatsAddress) -> None:
    for name, stream in streams.items():
        if stream.info() is not None:
            continue
        configuration: dict[str, Any] = {
            "subjects": [f"hilo.{address.run}.{subject}" for subject in _SUBJECTS[name]],
            "storage": "file",
            "retention": "limits",
            "discard": "new",
            "num_replicas": address.replicas,
            "allow_direct": True,
        }
        if name != "steps":
            configuration |= {"max_msgs_per_subject": 1, "discard": "old"}
        stream.make(configuration)


def _mirror(connection: Connection, stream: Stream, hub: str) -> None:
    """Makes the mirror of a hub's stream in the domain of the server that one is connected to."""
    near = Stream(connection, stream.name)
    if near.info() is None:
        mirror = {"name": stream.name, "external": {"api": f"$JS.{hub}.API", "deliver": ""}}
        near.make({"mirror": mirror, "storage": "file", "allow_direct": True})


def _check_server(connection: Connection) -> None:
    server, address = connection.server, connection.address
    if not server.get("jetstream") and address.hub is None:
        raise LogUnavailable(f"{address.url}: the server has no JetStream: set `jetstream` in its configuration")
    domain = server.get("domain")
    if address.hub is not None and domain in (None, address.hub):
        raise ConfigurationError(
            f"{address.url}: hub={address.hub}: expected a server of another JetStream domain, got {domain!r}; "
            "connect to the leaf node, or leave `hub` out"
        )
    version = str(server.get("version", ""))
    if tuple(int(digits) for digits in re.findall(r"\d+", version)[:2]) < _OLDEST_SERVER:
        _logger.warning(
            "%s: the server is %s: before 2.10 none can sync its disk before it acknowledges, and a crash of the "
            "machine loses records; use a newer one",
            address.url,
            version,
        )
    payload = int(server.get("max_payload", 0))
    if payload < _ADVISED_PAYLOAD:
        _logger.warning(
            "%s: max_payload is %d bytes: longer records are sent in parts; set max_payload: 8MB in the server's "
            "configuration",
            address.url,
            payload,
        )


def _check_stream(stream: Stream) -> None:
    """Says what may lose records. How often the server syncs its disk, no client can ask: see docs/nats.md."""
    info = stream.info(near=True)
    if info is None:
        raise LogUnavailable(f"{stream.url}: the stream {stream.name} is missing; begin a new run")
    configuration = info["config"]
    if not configuration.get("allow_direct"):
        raise LogUnavailable(f"{stream.url}: the stream {stream.name} has no direct get: set allow_direct")
    unsafe = []
    if configuration.get("storage") != "file":
        unsafe.append("it is kept in memory, and lost when the server stops")
    if configuration.get("persist_mode", "default") not in ("", "default"):
        unsafe.append("its persist_mode is async: acknowledged records can be lost")
    limits = [name for name in _UNLIMITED if configuration.get(name, 0) > 0]
    if limits and not configuration.get("mirror"):
        unsafe.append(f"it has limits ({', '.join(limits)}), beyond which the server removes records by itself")
    if configuration.get("retention", "limits") != "limits":
        unsafe.append(f"its retention is {configuration['retention']}: messages are removed when they are read")
    for reason in unsafe:
        _logger.warning("%s: the stream %s is unsafe: %s", stream.url, stream.name, reason)
