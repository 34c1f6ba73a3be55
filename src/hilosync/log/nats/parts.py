"""Contents longer than a message: parts are stored first, and then the message that makes them visible.

Under a subject S, a content of at most one message is that message. A longer one is parts, at
S.DIGEST-0, S.DIGEST-1, …, and a message without payload whose header says how many there are and what
they must add up to. Writers of other contents write other parts, so the one condition on that last
message decides between them as it does for short contents.
"""

from __future__ import annotations

import re

from blake3 import blake3

from hilosync.errors import MalformedRecord
from hilosync.log.nats.stream import Message, Stream

__all__ = ["joined", "split"]

_HEADER = "Hilo-Parts"
_LARGEST_CONTENT = 1 << 31
"""Bytes of a content beyond which it is not read at all."""


def split(stream: Stream, subject: str, content: bytes, largest: int) -> tuple[bytes, dict[str, str]]:
    """Payload and headers of the message for a content; its parts, if it needs any, are stored.

    Args:
        stream: where the parts go.
        subject: prefix of the parts' subjects.
        content: what is to be published.
        largest: bytes that one message may have.

    Raises:
        LogUnavailable: the parts cannot be stored.
    """
    if len(content) <= largest:
        return content, {}
    digest = blake3(content).hexdigest()
    count = -(-len(content) // largest)
    for index in range(count):
        stream.publish(f"{subject}.{digest}-{index}", content[index * largest : (index + 1) * largest], {})
    return b"", {_HEADER: f"{count} {len(content)} {digest}"}


def joined(stream: Stream, subject: str, message: Message) -> bytes | None:
    """The content that a message makes visible, or None if its parts have been removed.

    Raises:
        LogUnavailable: a part cannot be read.
        MalformedRecord: the parts are not what the message says.
    """
    header = message.headers.get(_HEADER)
    if header is None:
        return message.data
    match = re.fullmatch(r"(\d{1,6}) (\d{1,10}) ([0-9a-f]{64})", header)
    if match is None or int(match[2]) > _LARGEST_CONTENT:
        raise MalformedRecord(f"{stream.url}: {subject}: expected a count, a length and a digest, got {header[:100]!r}")
    count, size, digest = int(match[1]), int(match[2]), match[3]
    parts: list[bytes] = []
    for index in range(count):
        part = stream.last(f"{subject}.{digest}-{index}")
        if part is None:
            return None
        parts.append(part.data)
        if sum(map(len, parts)) > size:
            break
    content = b"".join(parts)
    if len(content) != size or blake3(content).hexdigest() != digest:
        raise MalformedRecord(
            f"{stream.url}: {subject}: damaged parts: expected {size} bytes with digest {digest[:16]}…, "
            f"got {len(content)} others"
        )
    return content
