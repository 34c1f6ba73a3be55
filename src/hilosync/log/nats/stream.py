"""A JetStream stream: make it, publish to it under a condition, read it by number or subject, purge it.

Messages are read by *direct get* alone. Consumers hold state in the server that a restart loses, and
one that pushes was seen to skip messages; a question by number has one right answer.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from hilosync.errors import LogUnavailable
from hilosync.log.nats.connection import Answer, Connection

__all__ = ["Message", "Published", "Stream"]

_STREAM_NOT_FOUND = 10059
_NAME_IN_USE = 10058
_WRONG_SEQUENCE = (10071, 10164)
_WRONG_LAST_ID = 10070
_TRY_AGAIN = (10008, 10201)  # JetStream is starting; the same message is being stored
_PAUSE = 0.1
_PATIENCE = 5.0
_SLOWEST_LINK = 50_000  # bytes a second that a message takes at least, before it is sent again
_ADVICE = {
    10023: "free some space on the server, or raise max_file_store",
    10047: "free some space on the server, or raise max_file_store",
    10074: "the server is no cluster of that size: lower `replicas` in the address",
    10077: "the stream has a limit on its bytes: remove it",
}


@dataclass(frozen=True)
class Message:
    """A stored message: its number in the stream, its payload and its headers."""

    sequence: int
    data: bytes
    headers: dict[str, str]


@dataclass(frozen=True)
class Published:
    """What the server made of a message.

    Attributes:
        duplicate: it was not stored, because one with its id had been.
        wrong_sequence: it was refused, because the stream or the subject is at another message than expected.
        wrong_last_id: it was refused, because the stream's last message has another id than expected.
    """

    duplicate: bool = False
    wrong_sequence: bool = False
    wrong_last_id: bool = False


class Stream:
    """One stream, in the JetStream domain where it was made, with perhaps a mirror nearer by.

    Args:
        connection: to any server of that cluster, or of a leaf node.
        name: of the stream, and of its mirror.
        domain: JetStream domain of the stream; None for the connection's own.
        read_domains: where to look for a message, the nearest first.
    """

    def __init__(
        self,
        connection: Connection,
        name: str,
        domain: str | None = None,
        read_domains: tuple[str | None, ...] = (None,),
    ):
        self._connection = connection
        self._api = _api(domain)
        self._reads = [_api(each) for each in read_domains]
        self.name = name
        self.url = connection.address.url

    def make(self, configuration: dict[str, Any]) -> None:
        """Makes the stream, if there is none.

        Raises:
            LogUnavailable: the server refuses.
        """
        answer = self._call("CREATE", {"name": self.name, **configuration})
        if "error" in answer and answer["error"].get("err_code") != _NAME_IN_USE:
            raise self._refused(f"make the stream {self.name}", answer["error"])

    def info(self, subjects: str | None = None, near: bool = False) -> dict[str, Any] | None:
        """The stream's configuration and state, or None if there is no stream.

        Args:
            subjects: a filter; the state then holds the subjects that match it.
            near: ask the nearest mirror.
        """
        api = self._reads[0] if near else self._api
        answer = self._call("INFO", {"subjects_filter": subjects} if subjects else {}, api)
        if "error" not in answer:
            return answer
        if answer["error"].get("err_code") == _STREAM_NOT_FOUND:
            return None
        raise self._refused(f"look at the stream {self.name}", answer["error"])

    def last_sequence(self) -> int:
        """The number of the newest message, 0 if there is none, at the nearest place."""
        info = self.info(near=True)
        if info is None:
            raise LogUnavailable(f"{self.url}: the stream {self.name} has been removed: begin a new run")
        return int(info["state"]["last_seq"])

    def subjects(self, pattern: str) -> list[str]:
        """The subjects with a message that match a pattern."""
        found: dict[str, int] = {}
        while True:
            request = {"subjects_filter": pattern, "offset": len(found)}
            answer = self._call("INFO", request)
            if "error" in answer:
                raise self._refused(f"list {pattern}", answer["error"])
            page = answer["state"].get("subjects") or {}
            found |= page
            if not page or len(found) >= answer.get("total", 0):
                return list(found)

    def message(self, sequence: int) -> Message | None:
        """The message of this number, or None."""
        return self._get("", {"seq": sequence})

    def last(self, subject: str) -> Message | None:
        """The newest message of a subject, or None."""
        return self._get(f".{subject}", None)

    def first(self, subject: str) -> Message | None:
        """The oldest message of a subject, or None."""
        return self._get("", {"seq": 1, "next_by_subj": subject})

    def publish(self, subject: str, data: bytes, headers: dict[str, str]) -> Published:
        """Stores a message, under the conditions in its headers.

        Raises:
            LogUnavailable: no answer, or the server refuses for a reason other than a condition.
        """
        doing, deadline = f"publish to {subject}", time.monotonic() + self._connection.address.timeout
        while True:
            patience = _PATIENCE + len(data) / _SLOWEST_LINK
            answer = self._connection.ask(doing, subject, data, headers or None, patience, self._is_gone)
            found = self._decoded(answer, doing)
            error = found.get("error")
            if error is None:
                return Published(duplicate=bool(found.get("duplicate")))
            code = error.get("err_code")
            if code in _WRONG_SEQUENCE:
                return Published(wrong_sequence=True)
            if code == _WRONG_LAST_ID:
                return Published(wrong_last_id=True)
            if code not in _TRY_AGAIN or time.monotonic() > deadline:
                raise self._refused(doing, error)
            time.sleep(_PAUSE)

    def purge(self, pattern: str, before_sequence: int = 0) -> None:
        """Removes the messages whose subject matches, all or those below a number."""
        request: dict[str, Any] = {"filter": pattern}
        if before_sequence:
            request["seq"] = before_sequence
        answer = self._call("PURGE", request)
        if "error" in answer:
            raise self._refused(f"remove {pattern}", answer["error"])

    def _get(self, suffix: str, request: dict[str, Any] | None) -> Message | None:
        data = b"" if request is None else json.dumps(request).encode()
        doing = f"read {suffix[1:] or request} of {self.name}"
        for api in self._reads:
            answer = self._connection.ask(doing, f"{api}.DIRECT.GET.{self.name}{suffix}", data, gone=self._is_gone)
            status = answer.headers.get("Status")
            if status is None:
                return Message(int(answer.headers["Nats-Sequence"]), answer.data, answer.headers)
            if status != "404":
                raise LogUnavailable(
                    f"{self.url}: cannot {doing}: expected a message or status 404, got {status} "
                    f"{answer.headers.get('Description', '')!r}"
                )
        return None

    def _call(self, verb: str, request: dict[str, Any], api: str | None = None) -> dict[str, Any]:
        doing = f"{verb.lower()} the stream {self.name}"
        subject = f"{api or self._api}.STREAM.{verb}.{self.name}"
        answer = self._connection.ask(doing, subject, json.dumps(request).encode(), patience=_PATIENCE)
        return self._decoded(answer, doing)

    def _decoded(self, answer: Answer, doing: str) -> dict[str, Any]:
        try:
            found = json.loads(answer.data)
            if isinstance(found, dict):
                return found
        except ValueError:
            pass
        raise LogUnavailable(
            f"{self.url}: cannot {doing}: expected an answer of JetStream, got {answer.data[:80]!r}; "
            "something else answers on this subject"
        )

    def _is_gone(self) -> bool:
        return self.info(near=True) is None

    def _refused(self, doing: str, error: dict[str, Any]) -> LogUnavailable:
        code = int(error.get("err_code", 0))
        advice = _ADVICE.get(code, "see the server's log")
        return LogUnavailable(
            f"{self.url}: cannot {doing}: JetStream refuses: {error.get('description')} ({code}); {advice}"
        )


def _api(domain: str | None) -> str:
    return "$JS.API" if domain is None else f"$JS.{domain}.API"
