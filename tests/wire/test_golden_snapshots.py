"""The golden manifest, chunk and tickets, read with the tables of docs/wire.md alone."""

from __future__ import annotations

import base64
import json
import struct

import pytest
from blake3 import blake3
from documented import HERE, documented_header, fields_of, golden
from safetensors.numpy import load as load_safetensors
from snapshot_frames import CHUNK, CHUNK_NAMES, CHUNK_PARTS, MANIFEST, TICKET, TICKET_SIGNED

from hilosync.wire import decode_chunk, decode_manifest, decode_ticket, encode_chunk, encode_manifest, encode_ticket


def ticket_text(name: str) -> str:
    return (HERE / "golden" / f"{name}.txt").read_text().strip()


def test_the_golden_manifest_reads_as_documented():
    data = golden("manifest")
    fields = fields_of("Manifest", data)
    assert (fields["magic"], fields["kind"], fields["format"], fields["flags"]) == (b"HiLo", 2, 1, 0)
    for name in ("version", "run", "plan", "configuration", "digest", "elements"):
        assert fields[name] == getattr(MANIFEST, name), name
    assert data[136:144] == blake3(data[:136]).digest(8)
    keys = data[144:]
    assert len(keys) == 32 * fields["chunks"] and blake3(keys).digest() == fields["body_hash"]
    assert keys[:32] == b"\xab" * 32 and keys[32:] == blake3(golden("chunk")).digest()


def test_the_golden_chunk_reads_as_documented():
    data = golden("chunk")
    (length,) = struct.unpack_from("<Q", data)
    text = data[8 : 8 + length].decode()
    assert len(text) % 8 == 0
    members = json.loads(text)
    assert text.rstrip(" ") == json.dumps(members, sort_keys=True, separators=(",", ":"))
    run = MANIFEST.run.hex()
    assert members["__metadata__"] == {"first": "6", "format": "hilo-chunk-1", "run": run, "version": "1"}
    assert run == "000102030405060708090a0b0c0d0e0f"
    words = struct.unpack("<4I", data[8 + length :])
    assert words == (0x80000000, 0x00000001, 0x7FA12345, 0x3F800000)
    tensors = load_safetensors(data)
    assert {name: tensor.tobytes() for name, tensor in tensors.items()} == dict(
        zip(CHUNK_NAMES, CHUNK_PARTS, strict=True)
    )


@pytest.mark.parametrize("signed", [False, True])
def test_the_golden_ticket_reads_as_documented(signed: bool):
    text = ticket_text("ticket_signed" if signed else "ticket")
    assert text.startswith("hilo1.")
    body = text.removeprefix("hilo1.")
    data = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
    header, _ = documented_header("Join ticket")
    fields = fields_of("Join ticket", data)
    assert (fields["format"], fields["flags"], header.size) == (1, int(signed), 84)
    for name in ("run", "plan", "configuration", "origin"):
        assert fields[name] == getattr(TICKET, name), name
    assert fields["origin"] == fields_of("Record", golden("record"))["previous"]
    k = 32 * signed
    assert data[84 : 84 + k] == bytes(range(32))[:k]
    assert data[84 + k : -8].decode() == TICKET.url and len(data) == 84 + k + fields["url_bytes"] + 8
    assert data[-8:] == blake3(b"hilo1." + data[:-8]).digest(8)


def test_the_encoders_still_write_the_golden_bytes():
    assert encode_manifest(MANIFEST) == golden("manifest")
    assert encode_chunk(CHUNK, CHUNK_NAMES, CHUNK_PARTS) == golden("chunk")
    assert encode_ticket(TICKET) == ticket_text("ticket")
    assert encode_ticket(TICKET_SIGNED) == ticket_text("ticket_signed")


def test_the_decoders_read_the_golden_bytes_back():
    assert decode_manifest(golden("manifest")) == MANIFEST
    assert tuple(bytes(part) for part in decode_chunk(golden("chunk"), CHUNK, CHUNK_NAMES, 2)) == CHUNK_PARTS
    assert decode_ticket(ticket_text("ticket")) == TICKET
    assert decode_ticket(ticket_text("ticket_signed")) == TICKET_SIGNED
