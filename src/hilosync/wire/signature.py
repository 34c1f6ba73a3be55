"""Ed25519 over a record's fixed header, which holds the hash of everything else."""

from __future__ import annotations

from hilosync.errors import BadSignature
from hilosync.wire.frame import RECORD_HEADER_BYTES, Buffer
from hilosync.wire.record import Record, Signer

__all__ = ["public_key_of", "signer", "verify_signature"]


def signer(private_key: bytes) -> Signer:
    """A function that signs headers with a 32-byte Ed25519 private key, for `encode_record`."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(private_key).sign


def public_key_of(private_key: bytes) -> bytes:
    """The 32-byte public half of a 32-byte Ed25519 private key."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(private_key).public_key().public_bytes_raw()


def verify_signature(data: Buffer, record: Record, public_key: bytes) -> None:
    """Checks that the holder of a 32-byte Ed25519 public key's private half signed this record.

    Args:
        data: the record's bytes.
        record: what `decode_record` made of them.
        public_key: 32 bytes.

    Raises:
        BadSignature: unsigned, or signed with another key.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if record.signature is None:
        raise BadSignature(
            f"record {record.version} is unsigned: expected a signature by {public_key.hex()[:16]}…; do not follow "
            "this log before its learner has been asked"
        )
    header = bytes(memoryview(data).cast("B")[:RECORD_HEADER_BYTES])
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(record.signature, header)
    except InvalidSignature as error:
        raise BadSignature(
            f"record {record.version} is not signed by {public_key.hex()[:16]}…: another learner wrote it, "
            "or the key in the join ticket is of another run"
        ) from error
