"""The snapshot and the tickets that the golden vectors hold, as values."""

from __future__ import annotations

import struct

from blake3 import blake3
from frames import GENESIS

from hilosync.wire import (
    Chunk,
    Manifest,
    Ticket,
    configuration_fingerprint,
    encode_chunk,
    encode_genesis,
    record_hash,
)

CHUNK = Chunk(run=GENESIS.run_id, version=1, first=6)
CHUNK_NAMES = ("params", "slots.m")
# −0, the smallest subnormal; a NaN with a payload, 1
CHUNK_PARTS = (struct.pack("<2I", 0x80000000, 0x00000001), struct.pack("<2I", 0x7FA12345, 0x3F800000))

MANIFEST = Manifest(
    run=GENESIS.run_id,
    plan=bytes(range(16, 32)),
    configuration=configuration_fingerprint(GENESIS),
    version=1,
    digest=bytes(range(64, 96)),
    elements=6,
    chunks=("ab" * 32, blake3(encode_chunk(CHUNK, CHUNK_NAMES, CHUNK_PARTS)).hexdigest()),
)

TICKET = Ticket(
    url="file:/data/runs/größe",
    run=GENESIS.run_id,
    plan=bytes(range(16, 32)),
    configuration=configuration_fingerprint(GENESIS),
    origin=record_hash(encode_genesis(GENESIS)),
)
TICKET_SIGNED = Ticket(TICKET.url, TICKET.run, TICKET.plan, TICKET.configuration, TICKET.origin, bytes(range(32)))
