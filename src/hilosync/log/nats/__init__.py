"""The log on NATS JetStream: `nats://host:port/run`. Records are one stream, numbered by the server."""

from hilosync.log.nats.opening import open_nats_log

__all__ = ["open_nats_log"]
