"""What an HTTP server says beside objects: why it refuses, and where to look instead. Little of that is ever read."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

__all__ = ["leave_body", "leave_body_async", "refusal_of", "refusal_of_async"]

_LONGEST = 1000
"""Bytes of a refusal beyond which it was not made for people; a server could send them without end."""

_SECONDS = 1.0
"""In which it should have come; a silence after that is the client's to bound."""


def refusal_of(response: Any) -> str:
    """What a relay adds to its refusal, one line for people; anything else is left unread.

    Args:
        response: of a stream that has not been read.
    """
    content, deadline = b"", time.monotonic() + _SECONDS
    if _is_short_text(response):
        with suppress(Exception):
            for chunk in response.iter_raw():
                content += chunk
                if time.monotonic() > deadline:
                    break
    return _line(content)


async def refusal_of_async(response: Any) -> str:
    """As `refusal_of`, of an asynchronous client's response."""
    content, deadline = b"", time.monotonic() + _SECONDS
    if _is_short_text(response):
        with suppress(Exception):
            async for chunk in response.aiter_raw():
                content += chunk
                if time.monotonic() > deadline:
                    break
    return _line(content)


def leave_body(response: Any) -> None:
    """A client's hook: a redirection's body, which the client would read to its end, is empty."""
    import httpx2

    if response.has_redirect_location:
        response.stream.close()
        response.stream = httpx2.ByteStream(b"")


async def leave_body_async(response: Any) -> None:
    """As `leave_body`, of an asynchronous client."""
    import httpx2

    if response.has_redirect_location:
        await response.stream.aclose()
        response.stream = httpx2.ByteStream(b"")


def _is_short_text(response: Any) -> bool:
    length = response.headers.get("Content-Length", "")
    is_text = response.headers.get("Content-Type", "").startswith("text/plain")
    return is_text and length.isascii() and length.isdigit() and int(length[:10]) <= _LONGEST


def _line(content: bytes) -> str:
    line = content.decode("utf-8", errors="replace")[:300].partition("\n")[0]
    text = "".join(sign for sign in line if sign.isprintable())
    return f" ({text})" if text else ""
