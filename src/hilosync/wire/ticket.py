"""The join ticket: one line of text that tells a new worker where a run is and which run it must be.

    hilo1. ‖ base64url( format ‖ flags ‖ url bytes ‖ run ‖ plan ‖ configuration ‖ origin ‖ [key] ‖ url ‖ check )

It holds no secret: whoever reads it still needs access to the log.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
from dataclasses import dataclass

from blake3 import blake3

from hilosync.errors import BadTicket, ConfigurationError
from hilosync.wire.frame import CHECK_BYTES, FORMAT_VERSION

__all__ = ["TICKET_PREFIX", "Ticket", "decode_ticket", "encode_ticket", "is_ticket"]

TICKET_PREFIX = "hilo1."
"""What a ticket begins with; the digit is the version of its layout."""

# format version, flags, url bytes, run, plan, configuration, origin
_FIELDS = struct.Struct("<BBH16s16s16s32s")
_HAS_KEY = 1
_KEY_BYTES = 32
_LONGEST_URL = 1024
_LONGEST_TEXT = 2048
_LAYOUT = re.compile(r"hilo([0-9]+)\.")
_USER = re.compile(r"://[^/?#]*@")
_PARAMETER = re.compile(r"[?&;#]([^=&;#]+)=")
_SECRET = re.compile(
    r"secret|token|passw|credential|signature|^sig$|^pass$|(access|api|private|account)[_-]?key", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a worker needs to join a run, and to know that it is the right one.

    Attributes:
        url: the address of its log.
        run: the run's id, 16 bytes.
        plan: fingerprint of the adapter plan, 16 bytes.
        configuration: `configuration_fingerprint` of the genesis, 16 bytes.
        origin: `record_hash` of the genesis, 32 bytes.
        key: the Ed25519 public key that every record must be signed with, 32 bytes; None if they are not.
        format: format version of the log's frames.
    """

    url: str
    run: bytes
    plan: bytes
    configuration: bytes
    origin: bytes
    key: bytes | None = None
    format: int = FORMAT_VERSION


def is_ticket(text: str) -> bool:
    """Whether a text means to be a ticket, of this layout or a later one."""
    return _LAYOUT.match(text.strip()) is not None


def encode_ticket(ticket: Ticket) -> str:
    """The ticket as one line of text.

    Raises:
        ConfigurationError: the address is too long, or carries a secret, which a ticket must not.
    """
    _refuse_secrets(ticket.url)
    url = ticket.url.encode()
    if not 1 <= len(url) <= _LONGEST_URL:
        raise ConfigurationError(f"the address of the log has {len(url)} bytes: expected 1 to {_LONGEST_URL}")
    flags = 0 if ticket.key is None else _HAS_KEY
    fields = _FIELDS.pack(ticket.format, flags, len(url), ticket.run, ticket.plan, ticket.configuration, ticket.origin)
    content = b"".join((fields, ticket.key or b"", url))
    check = blake3(TICKET_PREFIX.encode() + content).digest(CHECK_BYTES)
    return TICKET_PREFIX + base64.urlsafe_b64encode(content + check).rstrip(b"=").decode()


def decode_ticket(text: str) -> Ticket:
    """Reads a ticket; white space around and within it is ignored, so that a wrapped line can be pasted.

    Raises:
        BadTicket: it is mistyped or incomplete, of another layout, or of another format version than
            this program reads.
    """
    compact = "".join(text.split()) if len(text) <= _LONGEST_TEXT else text
    layout = _LAYOUT.match(compact)
    if layout is None or len(compact) > _LONGEST_TEXT:
        raise BadTicket(
            f"not a join ticket: expected at most {_LONGEST_TEXT} characters that begin with {TICKET_PREFIX!r}, got "
            f"{len(text)} that begin with {text[:12]!r}; make one with `hilo ticket LOG`"
        )
    if layout[0] != TICKET_PREFIX:
        raise BadTicket(
            f"join ticket of layout {layout[1]}: this program reads layout {TICKET_PREFIX[4:-1]}; use the hilosync "
            "that made it, or a newer one"
        )
    content = _unpacked(compact.removeprefix(TICKET_PREFIX))
    check = blake3(TICKET_PREFIX.encode() + content[:-CHECK_BYTES]).digest(CHECK_BYTES)
    if len(content) < _FIELDS.size + CHECK_BYTES or content[-CHECK_BYTES:] != check:
        raise BadTicket(
            f"mistyped or incomplete join ticket: its check is {content[-CHECK_BYTES:].hex()}, what stands before it "
            f"has {check.hex()}; copy it whole, or make another with `hilo ticket LOG`"
        )
    form, flags, length, run, plan, configuration, origin = _FIELDS.unpack_from(content)
    if form != FORMAT_VERSION:
        raise BadTicket(
            f"join ticket of a log of format version {form}: this program reads version {FORMAT_VERSION}; use the "
            "hilosync that made it, or a newer one"
        )
    key_bytes = _KEY_BYTES if flags & _HAS_KEY else 0
    start = _FIELDS.size + key_bytes
    url = content[start:-CHECK_BYTES]
    if flags & ~_HAS_KEY or len(url) != length or not 1 <= length <= _LONGEST_URL:
        raise BadTicket(
            f"join ticket with flags {flags:#04x} and {len(url)} bytes of address, {length} announced: expected flags "
            f"0 or 1 and 1 to {_LONGEST_URL} bytes; use a newer hilosync"
        )
    try:
        address = url.decode()
    except UnicodeDecodeError as error:
        raise BadTicket(f"join ticket with an address that is not UTF-8: {error}") from error
    key = content[_FIELDS.size : start] if key_bytes else None
    return Ticket(address, run, plan, configuration, origin, key, form)


def _unpacked(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadTicket(
            f"mistyped or incomplete join ticket: {error}; expected letters, digits, '-' and '_' after "
            f"{TICKET_PREFIX!r}: copy it whole, or make another with `hilo ticket LOG`"
        ) from error


def _refuse_secrets(url: str) -> None:
    """A ticket is passed around in chats and job files; a password in the address would go with it.

    An address may hold another one (a view over HTTP of a log elsewhere), so all of the text is looked at.
    """
    if _USER.search(url) or any(_SECRET.search(name) for name in _PARAMETER.findall(url)):
        raise ConfigurationError(
            f"the address of the log ({url.partition('://')[0]}://…) carries a user or a secret, which a ticket must "
            "not: give them to each machine by its environment, and the address without them"
        )
