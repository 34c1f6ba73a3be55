"""Keys and signed tokens of NATS' operator mode, as its administration tool makes them."""

from __future__ import annotations

import base64
import json
import os
from typing import Any

import nkeys

LIMITS = (
    "subs", "data", "payload", "imports", "exports", "conn", "leaf",
    "mem_storage", "disk_storage", "streams", "consumer",
)  # fmt: skip
"""What an account may be limited in; the last four are of JetStream."""


def new_key(kind: int) -> nkeys.KeyPair:
    return nkeys.from_seed(nkeys.encode_seed(os.urandom(32), kind))


def token(issuer: nkeys.KeyPair, subject: nkeys.KeyPair, nats: dict[str, Any]) -> str:
    """A token in which an issuer says what a subject is and may do."""
    claims = {
        "jti": "test",
        "iat": 1_600_000_000,
        "iss": issuer.public_key.decode(),
        "name": "test",
        "sub": subject.public_key.decode(),
        "nats": nats | {"version": 2},
    }
    body = ".".join(
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()
        for part in ({"typ": "JWT", "alg": "ed25519-nkey"}, claims)
    )
    return f"{body}.{base64.urlsafe_b64encode(issuer.sign(body.encode())).rstrip(b'=').decode()}"


def operator_mode() -> tuple[str, str]:
    """Lines for a server's configuration, and the credentials of a user whom it then lets in."""
    operator, system = new_key(nkeys.PREFIX_BYTE_OPERATOR), new_key(nkeys.PREFIX_BYTE_ACCOUNT)
    account, user = new_key(nkeys.PREFIX_BYTE_ACCOUNT), new_key(nkeys.PREFIX_BYTE_USER)
    plain = {"type": "account", "limits": dict.fromkeys(LIMITS[:7], -1) | {"wildcards": True}}
    storing = {"type": "account", "limits": dict.fromkeys(LIMITS, -1) | {"wildcards": True}}
    accounts = {system: token(operator, system, plain), account: token(operator, account, storing)}
    configuration = "\n".join(
        [
            f"operator: {token(operator, operator, {'type': 'operator'})}",
            f"system_account: {system.public_key.decode()}",
            "resolver: MEMORY",
            "resolver_preload: {",
            *(f"    {key.public_key.decode()}: {signed}" for key, signed in accounts.items()),
            "}",
        ]
    )
    signed = token(account, user, {"type": "user", "subs": -1, "data": -1, "payload": -1})
    credentials = (
        f"-----BEGIN NATS USER JWT-----\n{signed}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed.decode()}\n------END USER NKEY SEED------\n"
    )
    return configuration, credentials
