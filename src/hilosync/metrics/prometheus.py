"""Metrics of a living process for Prometheus to scrape.

The names follow from the trackers': `sync/encode_s` becomes the histogram `hilo_sync_encode_seconds`,
`sync/bytes` the counter `hilo_sync_bytes_total`, everything else a gauge. There are no labels: a
version or a worker's name would make a new time series each time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hilosync.errors import ConfigurationError
from hilosync.metrics.trackers import missing

__all__ = ["COUNTED", "PrometheusSink"]

COUNTED = frozenset(
    {
        "relay/bytes",
        "relay/hits",
        "relay/misses",
        "rollout/batches",
        "rollout/completions",
        "rollout/reissued",
        "sync/bytes",
        "sync/digest_checks",
        "sync/digest_mismatch",
        "sync/duplicates",
        "sync/gaps",
    }
)
"""Metrics of which every step adds some."""


class PrometheusSink:
    """Answers at http://HOST:PORT/metrics until it is closed.

    Attributes:
        port: where it listens; the one it was given, or a free one for 0.
    """

    def __init__(self, address: str, config: Mapping[str, Any]):
        try:
            import prometheus_client
        except ImportError as error:
            raise missing("prometheus") from error
        self._client = prometheus_client
        host, _, port = address.rpartition(":")
        if not port.isdecimal() or int(port) > 65535:
            raise ConfigurationError(f"prometheus address {address!r}: expected PORT or HOST:PORT, such as 9464")
        self._registry = prometheus_client.CollectorRegistry()
        self._metrics: dict[str, Any] = {}
        try:
            self._server, self._thread = prometheus_client.start_http_server(
                int(port), addr=host or "127.0.0.1", registry=self._registry
            )
        except OSError as error:
            raise ConfigurationError(
                f"cannot listen for Prometheus at {host or '127.0.0.1'}:{port}: {error.strerror or error}; "
                "choose another port"
            ) from error
        self.port: int = self._server.server_port

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """See `Sink.log`."""
        for name, value in metrics.items():
            metric = self._metrics.get(name)
            if metric is None:
                metric = self._metrics[name] = self._make(name)
            if name in COUNTED:
                metric.inc(value)
            elif name.endswith("_s"):
                metric.observe(value)
            else:
                metric.set(value)

    def close(self) -> None:
        """See `Sink.close`."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _make(self, name: str) -> Any:
        exposed = "hilo_" + name.replace("/", "_").replace("@", "_at_")
        if name in COUNTED:
            return self._client.Counter(exposed, name, registry=self._registry)
        if name.endswith("_s"):
            return self._client.Histogram(exposed[: -len("_s")] + "_seconds", name, registry=self._registry)
        return self._client.Gauge(exposed, name, registry=self._registry)
