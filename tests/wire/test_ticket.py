"""The join ticket: one line of text, refused when a character of it is wrong."""

from __future__ import annotations

import base64
import string
from contextlib import suppress
from dataclasses import replace

import pytest
from blake3 import blake3

from hilosync.errors import BadTicket, ConfigurationError
from hilosync.wire import TICKET_PREFIX, Ticket, decode_ticket, encode_ticket, is_ticket

TICKET = Ticket(
    url="file:/data/runs/demo",
    run=bytes(range(16)),
    plan=bytes(range(16, 32)),
    configuration=bytes(range(32, 48)),
    origin=bytes(range(48, 80)),
)
SIGNED = replace(TICKET, url="s3://bucket/läufe/1", key=bytes(range(100, 132)))


def packed(content: bytes) -> str:
    """A ticket of any content, with a check that holds."""
    check = blake3(TICKET_PREFIX.encode() + content).digest(8)
    return TICKET_PREFIX + base64.urlsafe_b64encode(content + check).rstrip(b"=").decode()


def unpacked(text: str) -> bytes:
    body = text.removeprefix(TICKET_PREFIX)
    return base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))[:-8]


@pytest.mark.parametrize("ticket", [TICKET, SIGNED, replace(TICKET, url="x" * 1024)])
def test_a_ticket_reads_back(ticket: Ticket):
    text = encode_ticket(ticket)
    assert decode_ticket(text) == ticket
    assert is_ticket(text) and "\n" not in text and set(text) <= {*string.ascii_letters, *string.digits, *"-_."}
    assert decode_ticket(f"  {text[:50]}\n   {text[50:]}\r\n") == ticket


def test_a_ticket_is_short():
    assert len(encode_ticket(TICKET)) == 6 + -(-(84 + len(TICKET.url) + 8) * 4 // 3)


@pytest.mark.parametrize("ticket", [TICKET, SIGNED])
def test_one_mistyped_left_out_or_added_character_is_noticed(ticket: Ticket):
    text = encode_ticket(ticket)
    for position in range(len(text)):
        other = "x" if text[position] != "x" else "y"
        for wrong in (text[:position] + other + text[position + 1 :], text[:position] + text[position + 1 :]):
            with suppress(BadTicket):
                # The last character holds bits that are not part of the ticket.
                assert decode_ticket(wrong) == ticket and position == len(text) - 1
    for wrong in ("", "hilo1.", text[:-1], text + "A", text + text[6:], text.lower(), text[1:], text + "!", "ä" + text):
        with pytest.raises(BadTicket):
            decode_ticket(wrong)


@pytest.mark.parametrize("ticket", [TICKET, SIGNED])
@pytest.mark.parametrize("missing", range(1, 9))
def test_a_ticket_that_was_not_copied_whole_is_called_incomplete(ticket: Ticket, missing: int):
    with pytest.raises(BadTicket, match=r"^mistyped or incomplete join ticket: "):
        decode_ticket(encode_ticket(ticket)[:-missing])


def test_swapped_characters_are_noticed(rng):
    text = encode_ticket(TICKET)
    for position in rng.choice(len(text) - 1, 60, replace=False):
        a, b = text[position], text[position + 1]
        if a != b:
            with pytest.raises(BadTicket):
                decode_ticket(text[:position] + b + a + text[position + 2 :])


def test_another_format_or_layout_is_refused_with_both_values():
    with pytest.raises(BadTicket, match="format version 9: this program reads version 1"):
        decode_ticket(packed(bytes([9]) + unpacked(encode_ticket(TICKET))[1:]))
    later = encode_ticket(TICKET).replace("hilo1.", "hilo2.")
    assert is_ticket(later)
    with pytest.raises(BadTicket, match="layout 2: this program reads layout 1"):
        decode_ticket(later)


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content[:1] + b"\x02" + content[2:],
        lambda content: content[:1] + b"\x01" + content[2:],
        lambda content: content[:2] + b"\x05\x00" + content[4:],
        lambda content: content[:2] + b"\xff\xff" + content[4:],
        lambda content: content + b"more",
        lambda content: content[:84],
        lambda content: content[:50],
        lambda content: b"",
        lambda content: content[:84] + b"\xff" * (len(content) - 84),
    ],
)
def test_an_authors_mistakes_are_refused_as_well(change):
    with pytest.raises(BadTicket):
        decode_ticket(packed(change(unpacked(encode_ticket(TICKET)))))


def test_a_text_of_any_length_is_refused_quickly():
    with pytest.raises(BadTicket, match="expected at most 2048 characters"):
        decode_ticket("hilo1." + "A" * 5_000_000)


@pytest.mark.parametrize(
    "url",
    [
        "nats://me:password@host/run",
        "nats://t0ken@host/run",
        "https://cdn/run|nats://me:password@host/run",
        "s3://bucket/run?aws_secret_access_key=abc",
        "https://host/run?X-Amz-Signature=abc",
        "az://c/run?sig=abc",
        "s3://bucket/run?api_key=1&region=x",
    ],
)
def test_an_address_with_a_secret_makes_no_ticket_and_the_secret_is_not_shown(url: str):
    with pytest.raises(ConfigurationError, match="a user or a secret") as caught:
        encode_ticket(replace(TICKET, url=url))
    assert "abc" not in str(caught.value) and "password@" not in str(caught.value) and "t0ken" not in str(caught.value)


@pytest.mark.parametrize("url", ["", "x" * 1025])
def test_an_address_of_an_impossible_length_makes_no_ticket(url: str):
    with pytest.raises(ConfigurationError, match="expected 1 to 1024"):
        encode_ticket(replace(TICKET, url=url))


@pytest.mark.parametrize("text", ["file:runs/demo", "runs/demo", "memory:hilo1.x", "hilo", "s3://hilo1.x"])
def test_an_address_is_no_ticket(text: str):
    assert not is_ticket(text)
