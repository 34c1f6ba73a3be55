from __future__ import annotations

import numpy as np
import pytest
from frames import GENESIS, PRIVATE_KEY, example_record

from hilosync.errors import BadSignature, MalformedRecord
from hilosync.wire import (
    Limits,
    body_hash,
    decode_record,
    encode_genesis,
    encode_record,
    record_hash,
    record_overhead,
    signer,
    verify_signature,
)

PLAIN = encode_record(example_record())
SIGNED = encode_record(example_record(), signer(PRIVATE_KEY))
FRAMES = pytest.mark.parametrize("data", [PLAIN, SIGNED], ids=["plain", "signed"])


def public_key(private: bytes) -> bytes:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


@FRAMES
def test_a_record_comes_back_bit_by_bit(data: bytes):
    record, original = decode_record(data), example_record()
    for name in ("run", "epoch", "version", "previous", "plan", "configuration", "digest"):
        assert getattr(record, name) == getattr(original, name), name
    assert record.scalars.tobytes() == original.scalars.tobytes()
    assert record.tags.tolist() == original.tags.tolist()
    assert bytes(record.payload) == original.payload
    assert encode_record(record) == data


def test_a_decoded_record_is_views_of_the_bytes_and_cannot_change_them():
    memory = bytearray(PLAIN)
    record = decode_record(memory)
    assert isinstance(record.payload, memoryview)
    assert record.payload.obj is memory
    assert np.shares_memory(record.scalars, np.frombuffer(memory, np.uint8))
    assert not decode_record(PLAIN).scalars.flags.writeable


@pytest.mark.parametrize("shape", [(0, 0), (1, 7), (3, 2)])
@pytest.mark.parametrize("blocks", [0, 1, 392])
@pytest.mark.parametrize("signed", [False, True])
def test_the_overhead_is_everything_but_the_payload(shape: tuple[int, int], blocks: int, signed: bool):
    record = example_record(scalars=np.ones(shape, np.float32), tags=np.zeros(blocks, np.uint16), payload=b"12345")
    data = encode_record(record, signer(PRIVATE_KEY) if signed else None)
    assert len(data) == record_overhead(blocks, *shape, signed=signed) + 5
    assert encode_record(decode_record(data)) == data


@FRAMES
def test_every_flipped_bit_is_found_in_the_record_itself(data: bytes):
    for position in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[position // 8] ^= 1 << position % 8
        with pytest.raises(MalformedRecord):
            decode_record(damaged)


@FRAMES
def test_every_truncation_and_every_trailing_byte_is_refused(data: bytes):
    for length in range(len(data)):
        with pytest.raises(MalformedRecord):
            decode_record(data[:length])
    with pytest.raises(MalformedRecord, match=f"expected {len(data)} bytes by its header, got {len(data) + 1}"):
        decode_record(data + b"\0")


def test_the_message_says_what_was_expected_and_what_came():
    cases = {
        "expected at least 192 bytes, got 3": b"HiL",
        "expected it to begin with b'HiLo', got b'PK": b"PK\3\4" + PLAIN[4:],
        "expected a record .* got genesis": encode_genesis(GENESIS),
        "got a frame of kind 9": PLAIN[:4] + b"\x09" + PLAIN[5:],
        "format version 2: this program reads version 1": PLAIN[:5] + b"\2" + PLAIN[6:],
        "flags 0x0102": PLAIN[:6] + b"\2\1" + PLAIN[8:],
        "damaged header of a record that calls itself version 257": PLAIN[:17] + b"\1" + PLAIN[18:],
        "damaged body of record 1": PLAIN[:-1] + b"\0",
    }
    for message, data in cases.items():
        with pytest.raises(MalformedRecord, match=message):
            decode_record(data)


@pytest.mark.parametrize(
    ("limits", "what"),
    [
        (Limits(groups=1), "at most 1 param groups, got 2"),
        (Limits(scalars=2), "at most 2 scalars per group, got 3"),
        (Limits(blocks=1), "at most 1 blocks, got 2"),
        (Limits(payload_bytes=255), "at most 255 payload bytes, got 256"),
    ],
)
def test_lengths_above_the_limits_are_refused(limits: Limits, what: str):
    with pytest.raises(MalformedRecord, match=what):
        decode_record(PLAIN, limits)
    assert decode_record(PLAIN, Limits(groups=2, scalars=3, blocks=2, payload_bytes=256)).version == 1


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"run": b"short"}, "run: expected 16 bytes, got 5"),
        ({"digest": bytes(31)}, "digest: expected 32 bytes, got 31"),
        ({"version": 0}, "version: expected 1"),
        ({"epoch": -1}, "epoch"),
        ({"epoch": 1 << 64}, "epoch"),
        ({"scalars": np.zeros((1, 1))}, "scalars: expected float32"),
        ({"scalars": np.zeros(3, np.float32)}, "scalars: expected float32 of shape"),
        ({"tags": np.zeros(3, np.uint64)}, "tags: expected uint16"),
        ({"signature": b"x"}, "signature: expected 64 bytes, got 1"),
    ],
)
def test_a_record_with_a_wrong_field_cannot_be_made(changes: dict, what: str):
    with pytest.raises(MalformedRecord, match=what):
        example_record(**changes)


def test_a_record_too_wide_for_its_header_cannot_be_written():
    with pytest.raises(MalformedRecord, match="65536 groups of 0 scalars"):
        encode_record(example_record(scalars=np.zeros((65536, 0), np.float32)))


def test_the_largest_numbers_fit():
    record = decode_record(encode_record(example_record(epoch=(1 << 64) - 1, version=(1 << 64) - 1)))
    assert record.epoch == record.version == (1 << 64) - 1


def test_the_body_hash_does_not_depend_on_how_the_body_is_cut():
    assert body_hash(b"abc") == body_hash(b"a", memoryview(b"bc"), b"")


def test_the_hash_of_a_record_covers_header_and_body_but_not_the_signature():
    assert record_hash(PLAIN) != record_hash(encode_record(example_record(payload=b"other")))
    assert record_hash(PLAIN) != record_hash(encode_record(example_record(epoch=4)))
    other_signer = encode_record(example_record(), signer(bytes(32)))
    assert record_hash(SIGNED) == record_hash(other_signer)
    assert record_hash(SIGNED) != record_hash(PLAIN)


@pytest.mark.parametrize("data", [b"", b"HiLo", b"HiLo\1\1\0\0", b"x" * 200, b"HiLo\7" + bytes(200)])
def test_what_is_no_frame_has_no_hash(data: bytes):
    with pytest.raises(MalformedRecord):
        record_hash(data)


def test_a_signature_is_the_learners_or_refused():
    verify_signature(SIGNED, decode_record(SIGNED), public_key(PRIVATE_KEY))
    with pytest.raises(BadSignature, match="unsigned"):
        verify_signature(PLAIN, decode_record(PLAIN), public_key(PRIVATE_KEY))
    with pytest.raises(BadSignature, match="not signed by"):
        verify_signature(SIGNED, decode_record(SIGNED), public_key(bytes(32)))
    forged = encode_record(example_record(epoch=9, signature=decode_record(SIGNED).signature))
    with pytest.raises(BadSignature, match="not signed by"):
        verify_signature(forged, decode_record(forged), public_key(PRIVATE_KEY))
