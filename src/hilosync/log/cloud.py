"""Objects in a bucket: `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, `az://CONTAINER/PREFIX`.

Endpoint and credentials come from the services' usual environment variables, never from the address.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from obstore.store import AzureStore, GCSStore, ObjectStore, S3Store

from hilosync.errors import ConfigurationError, LogUnavailable
from hilosync.log.objects import Objects
from hilosync.log.pieces import FIRST_PIECE, WAYS, cut
from hilosync.log.polling import Polling

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

__all__ = ["CLOUD_POLLING", "CloudObjects", "cloud_objects", "split_bucket"]

CLOUD_POLLING = Polling(shortest=0.05, longest=1.0, jitter=0.2)
"""A bucket charges per request, and steps take seconds."""

_CONNECT = 10.0
"""Seconds within which a connection must stand."""

_SILENCE = 60.0
"""Seconds without a byte of the answer after which a request has failed; an upload must be through by then."""

_REQUEST = 600.0
"""Seconds within which any one request must be through."""

_RETRIES: RetryConfig = {
    "max_retries": 4,
    "retry_timeout": timedelta(seconds=60),
    "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=5), "base": 2},
}

# Records, blobs and manifests never change, so that any cache may keep them; marks do.
_IMMUTABLE = re.compile(r"(steps|snapshots)/\d+|blobs/.+")
_LARGE = re.compile(r"steps/\d+|blobs/.+")
_KEEP = "public, max-age=31536000, immutable"
_ASK = "no-cache"

_STATUS = re.compile(r"status code: (\d{3})")
_NO_CONNECTION = re.compile("error sending request|connect|dns", re.IGNORECASE)
_TIMED_OUT = "timed out"

_PASSING = ("408", "429", "500", "502", "503", "504")
"""Answers after which the same request may succeed."""

_PROBE = "staging/create-only"
"""An object that is created twice, to see that the second time is refused."""

_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for a public bucket",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}

_ADVICE = {
    "AccessDenied": "the credentials may not do this; a worker needs to get and to list (without the right to list, "
    "an object that is missing looks forbidden), a learner also to put and to delete",
    "AuthorizationHeaderMalformed": "set AWS_REGION to the bucket's region",
    "ContainerNotFound": "there is no such container: create it, or check the address",
    "ExpiredToken": "the session's credentials have expired: renew them",
    "InvalidAccessKeyId": "the service does not know these credentials: check AWS_ACCESS_KEY_ID and AWS_ENDPOINT_URL",
    "InvalidToken": "the session token is not valid: check AWS_SESSION_TOKEN",
    "NoSuchBucket": "there is no such bucket: create it, or check the address and the endpoint",
    "NotImplemented": "this service has no create-only writes (If-None-Match), which a log rests on: use another",
    "PermanentRedirect": "set AWS_REGION to the bucket's region",
    "RequestTimeTooSkewed": "this machine's clock is wrong by more than the service allows: set it",
    "SignatureDoesNotMatch": "check AWS_SECRET_ACCESS_KEY and AWS_REGION",
    "SlowDown": "the service wants fewer requests: run fewer workers on this bucket, or put a relay before it",
}
_ADVICE_BY_STATUS = {
    "301": _ADVICE["PermanentRedirect"],
    "403": _ADVICE["AccessDenied"],
    "404": _ADVICE["NoSuchBucket"],
    "501": _ADVICE["NotImplemented"],
    "503": _ADVICE["SlowDown"],
}


class CloudObjects(Objects):
    """Objects of a bucket. A write that has returned is durable: the service says so only then."""

    def get(self, path: str) -> bytes | None:
        """See `Objects.get`. What may be large comes over several connections."""
        if not _LARGE.fullmatch(path):
            return super().get(path)
        with self._explained(f"read {path}"):
            try:
                answer = obstore.get(self.store, path, options={"range": (0, FIRST_PIECE)})
                size = self.bounded(path, answer.meta["size"])
                if size <= FIRST_PIECE:
                    return bytes(answer.bytes())
                with ThreadPoolExecutor(WAYS - 1) as ways:
                    rest = [ways.submit(self._piece, path, *ends) for ends in cut(0, size)[1:]]
                    return b"".join([bytes(answer.bytes()), *(piece.result() for piece in rest)])
            except FileNotFoundError:
                return None
            except BaseError as error:
                if re.search(r"InvalidRange|status code: 416", str(error)) is None:
                    raise
        return super().get(path)  # which is empty, so that it has no first bytes

    def _piece(self, path: str, start: int, end: int) -> bytes:
        return bytes(obstore.get_range(self.store, path, start=start, end=end))

    def create(self, path: str, content: bytes, durable: bool = False) -> bool:
        """See `Objects.create`."""
        with self._explained(f"write {path}"):
            try:
                obstore.put(self.store, path, content, mode="create", attributes=_attributes(path))
                return True
            except AlreadyExistsError:
                return False

    def replace(self, path: str, content: bytes, durable: bool = False) -> None:
        """See `Objects.replace`."""
        with self._explained(f"write {path}"):
            obstore.put(self.store, path, content, attributes=_attributes(path))

    def check_bucket(self) -> None:
        """Asks for one object, to learn now rather than later whether the service answers.

        Raises:
            LogUnavailable: it does not, refuses, or has no such bucket.
        """
        with self._explained("open it"):
            try:
                obstore.get(self.store, "steps/oldest")
            except FileNotFoundError as error:
                # An object that is missing is as it should be; a bucket that is missing looks almost the same.
                if re.search("NoSuchBucket|ContainerNotFound|bucket does not exist", str(error)):
                    raise

    def check_create(self) -> None:
        """Whether the service refuses to create what exists. Some take the condition and ignore it.

        Raises:
            LogUnavailable: it does not, so two learners could overwrite each other's records.
        """
        if self.create(_PROBE, b"") and self.create(_PROBE, b""):
            raise LogUnavailable(
                f"{self.url}: this service does not honour create-only writes (If-None-Match: *): expected the "
                f"second creation of {_PROBE} to be refused, it was accepted; use a service that has them"
            )

    def reason(self, error: BaseException) -> str:
        """See `Objects.reason`. The service's own text may name keys and hosts, so only its code is repeated."""
        text = str(error)
        status = _STATUS.search(text)
        code = re.search(r"<Code>(\w{1,64})</Code>", text)
        if "169.254." in text:
            return f"no credentials: set {_CREDENTIALS[self.url[:2]]}"
        if code or status:
            name = code[1] if code else ""
            number = status[1] if status else ""
            said = " ".join(part for part in (number, name) if part)
            advice = _ADVICE.get(name) or _ADVICE_BY_STATUS.get(number) or "check the service and its log"
            return f"the service said {said}; {advice}"
        if isinstance(error, PermissionDeniedError | UnauthenticatedError):
            return _ADVICE["AccessDenied"]
        if isinstance(error, NotSupportedError):
            return _ADVICE["NotImplemented"]
        if _TIMED_OUT in text:
            return f"no answer within {_SILENCE:.0f} s: check the network and the endpoint"
        if _NO_CONNECTION.search(text):
            return "the service cannot be reached: check the network and the endpoint"
        return f"{type(error).__name__} of the storage client; check the service and the environment variables"

    def passes(self, error: BaseException) -> bool:
        """See `Objects.passes`."""
        text = str(error)
        status = _STATUS.search(text)
        if status is not None:
            return status[1] in _PASSING
        return "169.254." not in text and (_TIMED_OUT in text or _NO_CONNECTION.search(text) is not None)


def cloud_objects(scheme: str, path: str, create: bool) -> CloudObjects:
    """The objects below a prefix of a bucket.

    Args:
        scheme: ``s3``, ``gs`` or ``az``.
        path: ``//BUCKET/PREFIX``.
        create: whether a run will be written here; the service must then prove that it can create without overwriting.

    Raises:
        ConfigurationError: the address names no bucket, or holds more than a bucket and a prefix.
        LogUnavailable: the service does not answer, refuses, has no such bucket, or no create-only writes.
    """
    bucket, prefix = split_bucket(scheme, path)
    url = f"{scheme}://{bucket}" + (f"/{prefix}" if prefix else "")
    try:
        store = _STORES[scheme](bucket, prefix or None)
    except (BaseError, ValueError) as error:
        # The text may quote the value of a variable, which may be a secret.
        raise ConfigurationError(
            f"{url}: the environment variables for this service cannot be used ({type(error).__name__}): "
            f"expected {_CREDENTIALS[scheme]}"
        ) from None
    objects = CloudObjects(store, url)
    objects.check_bucket()
    if create:
        objects.check_create()
    return objects


def split_bucket(scheme: str, path: str) -> tuple[str, str]:
    """Bucket and prefix of an address.

    Raises:
        ConfigurationError: no bucket, or something that belongs into environment variables. The address is
            not repeated then, since it may hold a secret.
    """
    try:
        parts = urlsplit(f"{scheme}:{path}")
    except ValueError as error:
        raise ConfigurationError(f"{scheme}: address: {error}: expected {scheme}://BUCKET/PREFIX") from None
    if "@" in parts.netloc or ":" in parts.netloc or parts.query or parts.fragment:
        raise ConfigurationError(
            f"{scheme}: address: expected {scheme}://BUCKET/PREFIX and nothing else; credentials, hosts and "
            "parameters go into environment variables (docs/s3.md)"
        )
    if not parts.netloc:
        raise ConfigurationError(f"{scheme}: log address without a bucket: expected {scheme}://BUCKET/PREFIX")
    return parts.netloc, parts.path.strip("/")


def _attributes(path: str) -> dict[Any, str]:
    return {"Cache-Control": _KEEP if _IMMUTABLE.fullmatch(path) else _ASK}


def _options(allow_http: str) -> ClientConfig:
    # Options given here replace those that the store would read from the environment.
    return {
        "connect_timeout": timedelta(seconds=_CONNECT),
        "read_timeout": timedelta(seconds=_SILENCE),
        "timeout": timedelta(seconds=_REQUEST),
        "allow_http": os.environ.get(allow_http, "").lower() in ("true", "1", "yes"),
    }


def _s3(bucket: str, prefix: str | None) -> ObjectStore:
    options = _options("AWS_ALLOW_HTTP")
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3"):
        endpoint = os.environ.get(name)
        if endpoint is None:
            continue
        # The store checks neither before its first request, which then fails in ways that name no cause.
        if re.match(r"https?://[\w.\[\]:-]+/?", endpoint) is None:
            raise ConfigurationError(f"{name}: expected https://HOST or http://HOST:PORT")
        if endpoint.startswith("http:") and not options.get("allow_http"):
            raise ConfigurationError(f"{name} is plain HTTP: use https://, or allow it with AWS_ALLOW_HTTP=true")
    return S3Store(bucket, prefix=prefix, conditional_put="etag", client_options=options, retry_config=_RETRIES)


def _gcs(bucket: str, prefix: str | None) -> ObjectStore:
    return GCSStore(bucket, prefix=prefix, client_options=_options("GOOGLE_ALLOW_HTTP"), retry_config=_RETRIES)


def _azure(container: str, prefix: str | None) -> ObjectStore:
    options = _options("AZURE_ALLOW_HTTP")
    return AzureStore(container, prefix=prefix, client_options=options, retry_config=_RETRIES)


_STORES: dict[str, Callable[[str, str | None], ObjectStore]] = {"s3": _s3, "gs": _gcs, "az": _azure}
