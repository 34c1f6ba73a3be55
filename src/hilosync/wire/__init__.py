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

__all__ = [
    "CHUNK_BYTES",
    "Chunk",
    "Genesis",
    "Limits",
    "Manifest",
    "PlanLayout",
    "Record",
    "Setup",
    "Signer",
    "TensorLayout",
    "body_hash",
    "configuration_fingerprint",
    "decode_chunk",
    "decode_genesis",
    "decode_manifest",
    "decode_record",
    "elements_per_chunk",
    "encode_chunk",
    "encode_genesis",
    "encode_manifest",
    "encode_record",
    "public_key_of",
    "read_chunk_origin",
    "record_hash",
    "record_overhead",
    "signer",
    "verify_signature",
]
