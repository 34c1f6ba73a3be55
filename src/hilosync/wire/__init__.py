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
from hilosync.wire.signature import signer, verify_signature

__all__ = [
    "Genesis",
    "Limits",
    "PlanLayout",
    "Record",
    "Setup",
    "Signer",
    "TensorLayout",
    "body_hash",
    "configuration_fingerprint",
    "decode_genesis",
    "decode_record",
    "encode_genesis",
    "encode_record",
    "record_hash",
    "record_overhead",
    "signer",
    "verify_signature",
]
