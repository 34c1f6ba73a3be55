"""The golden frames, read by a decoder that is built from the tables of docs/wire.md alone."""

from __future__ import annotations

import json
import re
import struct

import numpy as np
import pytest
from blake3 import blake3
from documented import DOCUMENT, documented_header, fields_of, golden
from frames import GENESIS, PRIVATE_KEY, example_record

from hilosync.plan import AdapterPlan, Block
from hilosync.wire import (
    configuration_fingerprint,
    decode_genesis,
    decode_record,
    encode_genesis,
    encode_record,
    record_hash,
    signer,
)


@pytest.mark.parametrize("signed", [False, True])
def test_the_golden_record_reads_as_documented(signed: bool):
    data = golden("record_signed" if signed else "record")
    fields = fields_of("Record", data)
    record = example_record()
    for name in ("epoch", "version", "run", "plan", "configuration", "previous", "digest"):
        assert fields[name] == getattr(record, name), name
    assert (fields["magic"], fields["kind"], fields["format"], fields["flags"]) == (b"HiLo", 1, 1, int(signed))

    s, G, S, B, P = 64 * signed, fields["groups"], fields["names"], fields["blocks"], fields["payload_bytes"]
    assert (G, S, B, P) == (2, 3, 2, 256)
    assert len(data) == 192 + s + 4 * G * S + 2 * B + P
    assert data[184 + s : 192 + s] == blake3(data[: 184 + s]).digest(8)
    body = data[192 + s :]
    assert blake3(body).digest() == fields["body_hash"]
    words = struct.unpack(f"<{G * S}I", body[: 4 * G * S])
    assert words == (0x38D1B717, 0x80000000, 1, 0x7FC12345, 0x7F800000, 0x3F800000)
    assert struct.unpack(f"<{B}H", body[4 * G * S : 4 * G * S + 2 * B]) == (0x1234, 0xFEDC)
    assert body[4 * G * S + 2 * B :] == bytes(range(256))


def test_the_golden_genesis_reads_as_documented():
    data = golden("genesis")
    fields = fields_of("Genesis", data)
    text = data[56:]
    assert (fields["magic"], fields["kind"], fields["format"], fields["flags"]) == (b"HiLo", 0, 1, 0)
    assert fields["length"] == len(text)
    assert fields["body_hash"] == blake3(text).digest()
    assert data[48:56] == blake3(data[:48]).digest(8)
    members = json.loads(text)
    assert text.decode() == json.dumps(members, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert members["run"] == "000102030405060708090a0b0c0d0e0f"
    assert members["plan"]["blocks"][1] == {
        "name": "layers.0.q_proj.lora_B",
        "rows": 96,
        "columns": 4,
        "fan_in": 0,
        "group": 1,
    }
    documented = set(re.findall(r"^\| `(\w+)` \|", DOCUMENT.read_text(), re.MULTILINE))
    assert set(members) == documented


def test_the_fingerprints_are_what_the_document_says():
    members = json.loads(golden("genesis")[56:])
    meaning = {name: members[name] for name in ("compressor", "initial", "optimizer", "seed")}
    text = json.dumps(meaning, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    expected = blake3(b"hilo-configuration-1\n" + text.encode()).digest(16)
    assert configuration_fingerprint(GENESIS) == expected
    assert fields_of("Record", golden("record"))["configuration"] == expected

    lines = [f"hilo-plan-1 {members['plan']['bytes_per_element']}"]
    lines += [f"{b['name']} {b['rows']} {b['columns']} {b['fan_in']} {b['group']}" for b in members["plan"]["blocks"]]
    blocks = tuple(Block(b.name, b.rows, b.columns, b.fan_in, b.group) for b in GENESIS.plan.blocks)
    fingerprint = blake3("".join(f"{line}\n" for line in lines).encode()).digest(16)
    assert AdapterPlan(blocks).fingerprint == fingerprint


def test_a_record_names_its_predecessor_by_the_hash_of_the_header():
    header, _ = documented_header("Genesis")
    assert fields_of("Record", golden("record"))["previous"] == blake3(golden("genesis")[: header.size]).digest()
    assert record_hash(golden("genesis")) == blake3(golden("genesis")[:48]).digest()
    assert record_hash(golden("record")) == blake3(golden("record")[:184]).digest()


def test_the_encoder_still_writes_the_golden_bytes():
    assert encode_genesis(GENESIS) == golden("genesis")
    assert encode_record(example_record()) == golden("record")
    assert encode_record(example_record(), signer(PRIVATE_KEY)) == golden("record_signed")


def test_the_decoder_reads_the_golden_bytes_back():
    assert decode_genesis(golden("genesis")) == GENESIS
    for name in ("record", "record_signed"):
        record = decode_record(golden(name))
        assert encode_record(record) == golden(name)
        assert np.array_equal(record.scalars.view(np.uint32), example_record().scalars.view(np.uint32))


def test_the_documented_limits_are_the_defaults():
    from hilosync.wire import Limits

    text = DOCUMENT.read_text().split("### Limits")[1].split("\n## ")[0]
    rows = re.findall(r"^\| [^|]+ \| (?:2\^(\d+)|(\d+)) \|$", text, re.MULTILINE)
    documented = [1 << int(power) if power else int(number) for power, number in rows]
    limits = Limits()
    assert documented == [
        limits.payload_bytes,
        limits.blocks,
        limits.groups,
        limits.scalars,
        limits.genesis_bytes,
        limits.elements,
        limits.chunks,
    ]
