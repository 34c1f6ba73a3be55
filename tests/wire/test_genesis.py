from __future__ import annotations

import math

import msgspec
import pytest
from blake3 import blake3
from frames import GENESIS, PRIVATE_KEY, example_record

from hilosync.errors import ConfigurationError, MalformedRecord
from hilosync.wire import (
    Limits,
    PlanLayout,
    Setup,
    TensorLayout,
    configuration_fingerprint,
    decode_genesis,
    encode_genesis,
    encode_record,
    record_hash,
    signer,
)

DATA = encode_genesis(GENESIS)


def framed(text: bytes) -> bytes:
    """A genesis with a valid header around any text."""
    header = b"HiLo\0\1\0\0" + len(text).to_bytes(8, "little") + blake3(text).digest()
    return header + blake3(header).digest(8) + text


def changed(**changes):
    return msgspec.structs.replace(GENESIS, **changes)


def test_a_genesis_comes_back():
    assert decode_genesis(DATA) == GENESIS
    assert encode_genesis(decode_genesis(DATA)) == DATA
    assert decode_genesis(DATA).run_id == bytes(range(16))


def test_what_may_be_left_out_has_its_documented_value():
    genesis = decode_genesis(
        framed(
            b'{"run":"'
            + b"0" * 32
            + b'","seed":0,"created_by":"x","plan":{"blocks":[{"name":"a","rows":1,"columns":1}]},'
            b'"optimizer":{"name":"lion"},"compressor":{"name":"dense"}}'
        )
    )
    assert (genesis.budget, genesis.base_model, genesis.peft, genesis.initial, genesis.task) == (
        None,
        None,
        None,
        "seed",
        {},
    )
    assert genesis.plan.bytes_per_element == 2
    assert (genesis.plan.blocks[0].fan_in, genesis.plan.blocks[0].group) == (0, 0)
    assert genesis.optimizer.settings == {}


def test_every_flipped_bit_of_a_genesis_is_found():
    for position in range(8 * len(DATA)):
        damaged = bytearray(DATA)
        damaged[position // 8] ^= 1 << position % 8
        with pytest.raises(MalformedRecord):
            decode_genesis(damaged)


def test_every_truncation_and_every_trailing_byte_of_a_genesis_is_refused():
    for length in range(len(DATA)):
        with pytest.raises(MalformedRecord):
            decode_genesis(DATA[:length])
    with pytest.raises(MalformedRecord, match=f"expected {len(DATA)} bytes by its header"):
        decode_genesis(DATA + b" ")


def test_a_record_is_no_genesis():
    with pytest.raises(MalformedRecord, match=r"expected a genesis \(kind 0\), got record"):
        decode_genesis(encode_record(example_record(), signer(PRIVATE_KEY)))


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": Setup("adamw", {"betas": [0.9, 0.99], "eps": 1e-8})},
        {"optimizer": Setup("lion", GENESIS.optimizer.settings)},
        {"compressor": Setup("spar", {"ranks": "uniform"})},
        {"compressor": Setup("dense", GENESIS.compressor.settings)},
        {"initial": "ab" * 32},
        {"seed": 18},
    ],
)
def test_the_fingerprint_changes_with_what_a_payload_means(changes: dict):
    assert configuration_fingerprint(changed(**changes)) != configuration_fingerprint(GENESIS)


@pytest.mark.parametrize(
    "changes",
    [
        {"run": "f" * 32},
        {"created_by": "another"},
        {"budget": None},
        {"base_model": None},
        {"peft": None},
        {"task": {}},
        {"plan": PlanLayout((TensorLayout("a", 1, 1),))},
        {"optimizer": Setup("adamw", {"eps": 1e-8, "betas": (0.9, 0.999)})},
    ],
)
def test_the_fingerprint_does_not_change_with_anything_else(changes: dict):
    assert configuration_fingerprint(changed(**changes)) == configuration_fingerprint(GENESIS)


def test_the_fingerprint_survives_the_wire_for_every_json_number():
    settings = {"values": [0.1, 1.0, 1, -0.0, 1e-45, 1e308, 1 << 63, 1 << 90, 5e-324, 1e16, 123456789.123456789]}
    genesis = changed(optimizer=Setup("adamw", settings))
    assert configuration_fingerprint(decode_genesis(encode_genesis(genesis))) == configuration_fingerprint(genesis)


def test_the_hash_of_the_genesis_covers_every_member():
    others = [changed(seed=18), changed(task={"name": "liars"}), changed(created_by="")]
    assert len({record_hash(encode_genesis(genesis)) for genesis in [GENESIS, *others]}) == 4


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"run": "0" * 31}, "run"),
        ({"run": "0" * 32 + "\n"}, "run"),
        ({"run": "A" * 32}, "run"),
        ({"seed": -1}, "seed"),
        ({"seed": 1 << 63}, "seed"),
        ({"budget": 0}, "budget"),
        ({"initial": "random"}, "initial"),
        ({"initial": "../" * 22}, "initial"),
        ({"plan": PlanLayout(())}, "tensors, got 0"),
        ({"plan": PlanLayout((TensorLayout("a", 0, 1),))}, "rows"),
        ({"plan": PlanLayout((TensorLayout("a", 1, 1 << 31),))}, "columns"),
        ({"plan": PlanLayout((TensorLayout("a", 1, 1, group=1 << 10),))}, "at most 1024 param groups, got 1025"),
        ({"plan": PlanLayout((TensorLayout("a", 1 << 30, 1 << 30),))}, "elements"),
        ({"optimizer": Setup("", {})}, "name"),
        ({"optimizer": Setup("adamw", {"lr": math.nan})}, "finite"),
        ({"compressor": Setup("spar", {"x": math.inf})}, "finite"),
        ({"task": {"x": object()}}, "object"),
        ({"task": {"x": "\ud800"}}, "surrogates"),
    ],
)
def test_a_run_that_cannot_be_described_is_refused_before_it_begins(changes: dict, what: str):
    with pytest.raises(ConfigurationError, match=what):
        encode_genesis(changed(**changes))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (b"", "genesis"),
        (b"[]", "genesis"),
        (b"{", "genesis"),
        (b'{"run":1}', "run"),
        (DATA[56:-1] + b',"extra":1}', "extra"),
        (DATA[56:].replace(b"17", b"1e999"), "genesis"),
        (DATA[56:].replace(b"knights", b"kn\xffghts"), "genesis"),
        (b'{"task":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "genesis"),
        (DATA[56:].replace(b'"knights"', b"[" * 100_000 + b"]" * 100_000), "genesis"),
    ],
)
def test_a_well_framed_text_that_is_no_genesis_is_refused(text: bytes, what: str):
    with pytest.raises(MalformedRecord, match=what):
        decode_genesis(framed(text))


def test_a_genesis_above_the_limits_is_refused():
    with pytest.raises(MalformedRecord, match="at most 100 bytes of JSON"):
        decode_genesis(DATA, Limits(genesis_bytes=100))
    with pytest.raises(MalformedRecord, match="1 to 1 tensors, got 2"):
        decode_genesis(DATA, Limits(blocks=1))
    with pytest.raises(MalformedRecord, match="at most 767 elements, got 768"):
        decode_genesis(DATA, Limits(elements=767))
