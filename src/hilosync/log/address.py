"""From an address to a log: `file:runs/demo`, `memory:demo`, `nats://host:port/demo`, or a bare path."""

from __future__ import annotations

import re
from collections.abc import Callable

from hilosync.errors import ConfigurationError, LogNotFound, MalformedRecord, UnknownName
from hilosync.log.base import Log
from hilosync.log.blobs import ObjectBlobStore
from hilosync.log.cloud import CLOUD_POLLING, cloud_objects
from hilosync.log.http import HTTP_POLLING, HttpObjects, base_address, split_view
from hilosync.log.mailbox import ObjectMailbox
from hilosync.log.nats import open_nats_log
from hilosync.log.objects import Objects, file_objects, file_root, memory_objects
from hilosync.log.polling import Polling
from hilosync.log.snapshots import ObjectSnapshotIndex
from hilosync.log.split import split_log
from hilosync.log.steps import ObjectStepLog

__all__ = ["absolute_address", "check_writable", "open_log", "open_objects", "parse_address"]


def open_objects(url: str) -> Objects | None:
    """The objects that the log at an address is made of, or None if it is not made of objects.

    Raises:
        ConfigurationError: the address names no known kind of log (`UnknownName`), or nothing.
        LogNotFound: there is no such folder.
        LogUnavailable: the storage refused.
    """
    scheme, rest = parse_address(url)
    if scheme == "file":
        return file_objects(rest, False)
    if scheme == "memory":
        return memory_objects(rest, False)
    if scheme in ("s3", "gs", "az"):
        return cloud_objects(scheme, rest, False)
    if scheme in ("http", "https"):
        return HttpObjects(base_address(scheme, rest))
    return None


def _object_log(objects: Objects, polling: Polling) -> Log:
    return Log(
        url=objects.url,
        steps=ObjectStepLog(objects, polling),
        blobs=ObjectBlobStore(objects),
        snapshots=ObjectSnapshotIndex(objects),
        mailbox=ObjectMailbox(objects, polling),
        polling=polling,
    )


def _cloud_log(scheme: str) -> Callable[[str, bool], Log]:
    return lambda path, create: _object_log(cloud_objects(scheme, path, create), CLOUD_POLLING)


def _http_log(scheme: str) -> Callable[[str, bool], Log]:
    def opener(rest: str, create: bool) -> Log:
        rest, behind = split_view(rest)
        objects = HttpObjects(base_address(scheme, rest))
        view = _object_log(objects, HTTP_POLLING)
        if behind is None:
            if create:
                check_writable(f"{scheme}:{rest}")
            return view
        inner, path = parse_address(behind)
        return split_log(view, _OPENERS[inner](path, create))

    return opener


# How each scheme opens what follows its colon; the second argument is `create`.
_OPENERS: dict[str, Callable[[str, bool], Log]] = {
    "az": _cloud_log("az"),
    "file": lambda path, create: _object_log(file_objects(path, create), Polling()),
    "gs": _cloud_log("gs"),
    "http": _http_log("http"),
    "https": _http_log("https"),
    "memory": lambda name, create: _object_log(memory_objects(name, create), Polling()),
    "nats": lambda rest, create: open_nats_log("nats", rest, create),
    "s3": _cloud_log("s3"),
    "tls": lambda rest, create: open_nats_log("tls", rest, create),
}


def parse_address(url: str) -> tuple[str, str]:
    """Scheme and rest of an address; one without a scheme is a path.

    Raises:
        UnknownName: no log has this scheme.
        ConfigurationError: nothing follows the scheme.
    """
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):", url)
    scheme, rest = (match[1].lower(), url[match.end() :]) if match else ("file", url)
    if scheme not in _OPENERS:
        raise UnknownName("log scheme", scheme, tuple(_OPENERS))
    if not rest.strip("/") and rest != "/":
        raise ConfigurationError(f"log address {url!r}: expected a path or name, such as file:runs/demo")
    return scheme, rest


def absolute_address(url: str) -> str:
    """The address with the path of a `file:` log in it absolute: it means the same in another folder."""
    scheme, rest = parse_address(url)
    if scheme == "file":
        return f"file:{file_root(rest)}"
    if scheme in ("http", "https"):
        view, behind = split_view(rest)
        return url if behind is None else f"{scheme}:{view}+{absolute_address(behind)}"
    return url


def check_writable(url: str) -> None:
    """Asks nobody: it is the address that says so.

    Raises:
        ConfigurationError: an HTTP view without a log behind it; nor is it an address otherwise.
    """
    scheme, rest = parse_address(url)
    if scheme in ("http", "https") and split_view(rest)[1] is None:
        HttpObjects(base_address(scheme, rest)).create("steps", b"")  # which says why it cannot be written


def open_log(url: str, create: bool = False, wait: float = 0.0) -> Log:
    """Opens the log of a run.

    Args:
        url: its address; a bare path is a `file:` log.
        create: the learner's choice: make an empty log if there is none.
        wait: seconds to wait for the run to begin, if it is not there yet and `create` is False.

    Raises:
        ConfigurationError: the address names no known kind of log (`UnknownName`), or nothing.
        LogNotFound: there is no run at this address: no genesis.
        LogUnavailable: the storage refused.
        MalformedRecord: the genesis is missing, and later records are there.
    """
    scheme, rest = parse_address(url)
    opener = _OPENERS[scheme]
    if create:
        return opener(rest, True)
    missing: list[LogNotFound] = []

    def look() -> Log | None:
        try:
            log = opener(rest, False)
            if log.steps.head() < 0:
                # Asked again after the listing: a learner may be beginning the run just now.
                if log.steps.highest() > 0 and log.steps.head() < 0:
                    raise MalformedRecord(
                        f"record 0 of {log.url} is missing, although record {log.steps.highest()} is there: "
                        "the log has a hole; restore the record, or use another log"
                    )
                raise LogNotFound(f"no run at {log.url}: the log is empty; start its learner, or check the address")
            return log
        except LogNotFound as error:
            missing.append(error)
            return None

    log = Polling(longest=0.5).until(look, wait)
    if log is None:
        raise missing[-1]
    return log
