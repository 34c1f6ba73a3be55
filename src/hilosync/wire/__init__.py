"""The bytes of a log: records, the genesis, their hashes and limits. Imports no torch."""

from hilosync.wire.frame import Limits, record_hash
from hilosync.wire.genesis import (
    Genesis,
    PlanLayout,
    Setup,
    TensorLayout,
    configuration_fingerprint,
    decode_genesis,
    encode_genesis,
)
from hilosync.wire.record import (
    Record,
    Signer,
    body_hash,
    decode_record,
    encode_record,
    record_overhead,
)
from hilosync.wire.signature import public_key_of, signer, verify_signature
from hilosync.wire.snapshot import (
    CHUNK_BYTES,
    Chunk,
    Manifest,
    decode_chunk,
    decode_manifest,
    elements_per_chunk,
    encode_chunk,
    encode_manifest,
    read_chunk_origin,
)
from hilosync.wire.ticket import TICKET_PREFIX, Ticket, decode_ticket, encode_ticket, is_ticket

__all__ = [
    "CHUNK_BYTES",
    "TICKET_PREFIX",
    "Chunk",
    "Genesis",
    "Limits",
    "Manifest",
    "PlanLayout",
    "Record",
    "Setup",
    "Signer",
    "TensorLayout",
    "Ticket",
    "body_hash",
    "configuration_fingerprint",
    "decode_chunk",
    "decode_genesis",
    "decode_manifest",
    "decode_record",
    "decode_ticket",
    "elements_per_chunk",
    "encode_chunk",
    "encode_genesis",
    "encode_manifest",
    "encode_record",
    "encode_ticket",
    "is_ticket",
    "public_key_of",
    "read_chunk_origin",
    "record_hash",
    "record_overhead",
    "signer",
    "verify_signature",
]
