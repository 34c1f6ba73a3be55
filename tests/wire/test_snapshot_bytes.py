"""Manifests and chunks from strangers: refused whole, whatever byte is wrong."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st
from snapshot_frames import CHUNK, CHUNK_NAMES, CHUNK_PARTS, MANIFEST

from hilosync.errors import ConfigurationError, MalformedRecord
from hilosync.wire import (
    CHUNK_BYTES,
    Chunk,
    Limits,
    decode_chunk,
    decode_manifest,
    elements_per_chunk,
    encode_chunk,
    encode_manifest,
    read_chunk_origin,
    record_hash,
)

DATA = encode_manifest(MANIFEST)
CHUNK_DATA = encode_chunk(CHUNK, CHUNK_NAMES, CHUNK_PARTS)


def rewritten(header: bytes, body: bytes) -> bytes:
    """A manifest whose check and hash hold whatever its author wrote."""
    header = header[:96] + blake3(body).digest() + header[128:]
    return header + blake3(header).digest(8) + body


def test_any_wrong_byte_of_a_manifest_is_noticed():
    for position in range(len(DATA)):
        with pytest.raises(MalformedRecord):
            decode_manifest(DATA[:position] + bytes([DATA[position] ^ 1]) + DATA[position + 1 :])
    for length in (*range(0, len(DATA), 7), len(DATA) - 1):
        with pytest.raises(MalformedRecord):
            decode_manifest(DATA[:length])
    with pytest.raises(MalformedRecord):
        decode_manifest(DATA + b"\x00")


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (6, struct.pack("<H", 1), "use a newer hilosync"),
        (8, struct.pack("<Q", 0), "expected version 1 or more"),
        (128, struct.pack("<I", 0), "1 element or more"),
        (132, struct.pack("<I", 0), "got 0 chunks"),
        (132, struct.pack("<I", 3), "bytes by its header"),
        (132, struct.pack("<I", 0xFFFFFFFF), "1 to 1048576 chunks"),
    ],
)
def test_an_author_of_false_manifests_is_refused(at: int, value: bytes, message: str):
    header = DATA[:136]
    with pytest.raises(MalformedRecord, match=message):
        decode_manifest(rewritten(header[:at] + value + header[at + len(value) :], DATA[144:]))


def test_a_readers_limit_on_chunks_is_kept():
    with pytest.raises(MalformedRecord, match="1 to 1 chunks"):
        decode_manifest(DATA, Limits(chunks=1))
    with pytest.raises(MalformedRecord, match="expected a record"):
        record_hash(DATA)


@settings(max_examples=200)
@given(st.binary(max_size=400))
def test_no_bytes_at_all_make_a_decoder_fail_otherwise(data: bytes):
    for decode in (
        decode_manifest,
        lambda bytes_: decode_manifest(DATA[:136] + bytes_),
        lambda bytes_: decode_chunk(bytes_, CHUNK, CHUNK_NAMES, 2),
    ):
        with pytest.raises(MalformedRecord):
            decode(data)
    assert read_chunk_origin(data) is None
    read_chunk_origin(struct.pack("<Q", len(data)) + data)


@pytest.mark.parametrize(
    "text",
    [
        b"{}",
        b"[]",
        b'{"__metadata__":[]}',
        b'{"__metadata__":{"format":"hilo-chunk-1","run":1,"version":"1","first":"0"}}',
        b'{"__metadata__":{"format":"hilo-chunk-1","run":"00","version":"1","first":"0"}}',
        b'{"__metadata__":{"format":"hilo-chunk-1","run":"' + b"0" * 32 + b'","version":"-1","first":"0"}}',
        b'{"__metadata__":{"format":"hilo-chunk-1","run":"' + b"0" * 32 + b'","version":1,"first":"0"}}',
        b'{"__metadata__":{"format":"another","run":"' + b"0" * 32 + b'","version":"1","first":"0"}}',
        b"[" * 4000,
        b"\xff\xfe",
    ],
)
def test_a_blob_that_is_no_chunk_of_ours_has_no_origin(text: bytes):
    assert read_chunk_origin(struct.pack("<Q", len(text)) + text + b"data") is None


def test_a_chunk_says_what_it_holds_and_is_refused_as_anything_else():
    assert read_chunk_origin(CHUNK_DATA) == CHUNK
    for other in (replace(CHUNK, version=2), replace(CHUNK, first=0), replace(CHUNK, run=bytes(16))):
        with pytest.raises(MalformedRecord, match="elements from 6 of version 1 of run 0001"):
            decode_chunk(CHUNK_DATA, other, CHUNK_NAMES, 2)
    for names, count in ((("params", "slots.v"), 2), (("params",), 2), (CHUNK_NAMES, 1), (CHUNK_NAMES, 3)):
        with pytest.raises(MalformedRecord, match="expected a chunk of"):
            decode_chunk(CHUNK_DATA, CHUNK, names, count)
    for wrong in (CHUNK_DATA[:-1], CHUNK_DATA + b"\x00", b""):
        with pytest.raises(MalformedRecord):
            decode_chunk(wrong, CHUNK, CHUNK_NAMES, 2)


@pytest.mark.parametrize("buffers", [1, 2, 3, 9])
def test_a_full_chunk_fits_its_limit_and_is_read_without_a_copy(buffers: int):
    elements = elements_per_chunk(buffers)
    names = ["params", *(f"slots.{'long_name' * 4}{i}" for i in range(buffers - 1))]
    data = encode_chunk(Chunk(bytes(16), (1 << 64) - 1, 1 << 40), names, [bytes(4 * elements)] * buffers)
    assert 0.99 * CHUNK_BYTES < len(data) <= CHUNK_BYTES
    parts = decode_chunk(data, Chunk(bytes(16), (1 << 64) - 1, 1 << 40), names, elements)
    assert all(np.shares_memory(np.frombuffer(part, np.uint8), np.frombuffer(data, np.uint8)) for part in parts)


def test_an_optimizer_with_absurd_names_is_refused():
    with pytest.raises(ConfigurationError, match="expected at most 8192"):
        encode_chunk(CHUNK, ["params", "slots." + "x" * 9000], CHUNK_PARTS)
