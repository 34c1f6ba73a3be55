"""Any bytes give a frame or a `MalformedRecord`, in little memory: also bytes whose hashes are right."""

from __future__ import annotations

import tracemalloc

import pytest
from blake3 import blake3
from frames import GENESIS, PRIVATE_KEY, example_record
from hypothesis import given, settings
from hypothesis import strategies as st

from hilosync.errors import MalformedRecord
from hilosync.wire import decode_genesis, decode_record, encode_genesis, encode_record, signer

PLAIN = encode_record(example_record())
SIGNED = encode_record(example_record(), signer(PRIVATE_KEY))
WHOLE_GENESIS = encode_genesis(GENESIS)
DECODERS = {"genesis": decode_genesis, "record": decode_record}
FUZZ = settings(max_examples=150)

edits = st.lists(
    st.tuples(st.sampled_from(["set", "delete", "insert", "repeat"]), st.integers(0, 600), st.binary(max_size=9)),
    min_size=1,
    max_size=6,
)


def edited(data: bytes, changes: list[tuple[str, int, bytes]]) -> bytes:
    result = bytearray(data)
    for kind, position, content in changes:
        at = position % (len(result) + 1)
        if kind == "set":
            result[at : at + len(content)] = content
        elif kind == "delete":
            del result[at : at + len(content) ** 2]
        elif kind == "insert":
            result[at:at] = content
        else:
            result[at:at] = result[max(0, at - 40) : at]
    return bytes(result)


def rehashed(data: bytes) -> bytes:
    """The same frame with the hashes that an author of false frames would give it."""
    header_bytes, hash_at = (184, 136) if data[4] else (48, 16)
    signature_bytes = 64 if data[4] and data[6] & 1 else 0
    start = header_bytes + signature_bytes + 8
    header = data[:hash_at] + blake3(data[start:]).digest() + data[hash_at + 32 : header_bytes]
    signature = data[header_bytes : header_bytes + signature_bytes]
    return header + signature + blake3(header + signature).digest(8) + data[start:]


def outcome(decode, data: bytes) -> str:
    try:
        decode(data)
    except MalformedRecord:
        return "refused"
    return "read"


@pytest.mark.parametrize("name", DECODERS)
@FUZZ
@given(data=st.binary(max_size=400), prefixed=st.booleans())
def test_random_bytes_are_refused(name: str, data: bytes, prefixed: bool):
    prefix = (b"HiLo\0\1\0\0" if name == "genesis" else b"HiLo\1\1\0\0") if prefixed else b""
    assert outcome(DECODERS[name], prefix + data) == "refused"


@pytest.mark.parametrize("data", [PLAIN, SIGNED, WHOLE_GENESIS], ids=["record", "signed record", "genesis"])
@FUZZ
@given(changes=edits)
def test_an_edited_frame_is_refused(data: bytes, changes: list[tuple[str, int, bytes]]):
    result = edited(data, changes)
    decode = decode_record if data[4] else decode_genesis
    assert outcome(decode, result) == ("read" if result == data else "refused")


@pytest.mark.parametrize("data", [PLAIN, SIGNED, WHOLE_GENESIS], ids=["record", "signed record", "genesis"])
@FUZZ
@given(changes=edits)
def test_an_edited_frame_with_right_hashes_is_read_or_refused_but_nothing_else(
    data: bytes, changes: list[tuple[str, int, bytes]]
):
    result = edited(data, changes)
    if len(result) > 8:
        outcome(decode_record if data[4] else decode_genesis, rehashed(result))


@FUZZ
@given(
    groups=st.integers(0, (1 << 16) - 1),
    names=st.integers(0, (1 << 16) - 1),
    blocks=st.integers(0, (1 << 32) - 1),
    payload_bytes=st.integers(0, (1 << 64) - 1),
)
def test_adversarial_lengths_with_right_hashes_allocate_nothing(
    groups: int, names: int, blocks: int, payload_bytes: int
):
    lengths = (
        groups.to_bytes(2, "little")
        + names.to_bytes(2, "little")
        + blocks.to_bytes(4, "little")
        + payload_bytes.to_bytes(8, "little")
    )
    false = rehashed(PLAIN[:168] + lengths + PLAIN[184:])
    tracemalloc.start()
    try:
        assert outcome(decode_record, false) == ("read" if false == PLAIN else "refused")
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_a_genesis_takes_memory_in_proportion_to_its_text():
    filler = b"[" + b"[]," * 80_000 + b"[]]"
    text = WHOLE_GENESIS[56:].replace(b'"knights"', filler)
    header = WHOLE_GENESIS[:8] + len(text).to_bytes(8, "little") + WHOLE_GENESIS[16:56]
    frame = rehashed(header + text)
    tracemalloc.start()
    try:
        assert outcome(decode_genesis, frame) == "read"
        assert tracemalloc.get_traced_memory()[1] < 50 * len(text)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("length", [0, 1, 1 << 22, 1 << 40, (1 << 64) - 1])
def test_an_adversarial_length_of_a_genesis_is_refused(length: int):
    false = rehashed(WHOLE_GENESIS[:8] + length.to_bytes(8, "little") + WHOLE_GENESIS[16:])
    with pytest.raises(MalformedRecord, match=r"expected (at most )?\d+ bytes"):
        decode_genesis(false)
