"""A throw-away S3 service on this machine, for the demo, the tests and measurements: moto's server.

It keeps everything in memory. Run it as a process of its own: `with s3_server() as environment: ...`, or
`python -m hilosync.bench.s3_server ADDRESS BUCKET`, which prints its port.
"""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from hilosync.errors import ConfigurationError, PeerSilent

__all__ = ["make_bucket", "s3_environment", "s3_server"]

_SECONDS_TO_START = 60.0

_PUBLIC = """{"Version": "2012-10-17", "Statement": [
    {"Effect": "Allow", "Principal": "*", "Resource": "arn:aws:s3:::BUCKET/*",
     "Action": ["s3:GetObject", "s3:HeadObject"]},
    {"Effect": "Allow", "Principal": "*", "Action": "s3:ListBucket", "Resource": "arn:aws:s3:::BUCKET"}
]}"""
"""A policy by which anybody may read the bucket, as `http:` views of it do; moto has a right of its own for HEAD."""


@contextmanager
def s3_server(bucket: str = "hilo") -> Iterator[dict[str, str]]:
    """Starts a service that holds one empty bucket, which anybody may read over HTTP, and stops it in the end.

    Yields:
        The environment variables with which `s3://BUCKET/...` is this service's.

    Raises:
        ConfigurationError: moto is not installed.
        PeerSilent: it did not start in time.
    """
    arguments = [sys.executable, "-m", "hilosync.bench.s3_server", "127.0.0.1", bucket]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    try:
        yield s3_environment(f"http://127.0.0.1:{_port_of(process)}")
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def make_bucket(endpoint: str, bucket: str) -> None:
    """Adds a bucket to such a service, empty and public."""
    for path, content in ((bucket, ""), (f"{bucket}?policy", _PUBLIC.replace("BUCKET", bucket))):
        headers = {"Content-Type": "application/json"}  # a form would be taken apart on its way to moto
        request = urllib.request.Request(f"{endpoint}/{path}", content.encode(), headers, method="PUT")
        urllib.request.urlopen(request, timeout=_SECONDS_TO_START).close()


def s3_environment(endpoint: str) -> dict[str, str]:
    """The environment variables with which `s3:` addresses lead to such a service."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "anybody",
        "AWS_SECRET_ACCESS_KEY": "anything",
    }


def _port_of(process: subprocess.Popen[str]) -> int:
    """The port that the server's process prints once it listens."""
    assert process.stdout is not None
    timer = threading.Timer(_SECONDS_TO_START, process.kill)
    timer.start()
    try:
        line = process.stdout.readline()
    finally:
        timer.cancel()
    if line.strip().isdigit():
        return int(line)
    if process.wait(_SECONDS_TO_START) == ConfigurationError.exit_code:
        raise ConfigurationError("a local S3 service needs moto: pip install 'hilosync[dev]'")
    raise PeerSilent(f"the local S3 service did not start within {_SECONDS_TO_START:.0f} s")


class _OneAtATime:
    """A WSGI application whose requests are served one after the other.

    moto looks whether an object exists and then writes it; only so is the create-only write atomic, as it is in S3.
    """

    def __init__(self, application: Callable[..., Iterable[bytes]]):
        self._application = application
        self._lock = threading.Lock()

    def __call__(self, environment: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        # Read before the lock is taken: a client that stalls in its upload must not stall the others.
        body = environment["wsgi.input"].read(int(environment.get("CONTENT_LENGTH") or 0))
        environment["wsgi.input"] = io.BytesIO(body)
        with self._lock:
            return list(self._application(environment, start_response))


def _serve(address: str, bucket: str) -> None:
    try:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server
    except ImportError:
        sys.exit(ConfigurationError.exit_code)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    application = _OneAtATime(DomainDispatcherApplication(create_backend_app))
    server = make_server(address, 0, application, threaded=True)
    # The server ends with whoever started it, even if that was killed.
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    threading.Thread(target=_make_and_tell, args=(f"http://{address}:{server.server_port}", bucket)).start()
    server.serve_forever()


def _make_and_tell(endpoint: str, bucket: str) -> None:
    make_bucket(endpoint, bucket)
    sys.stdout.write(f"{endpoint.rpartition(':')[2]}\n")
    sys.stdout.flush()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(0)


if __name__ == "__main__":
    _serve(*sys.argv[1:])
