"""The learner's private key: a file of 64 hex digits that only its owner may read."""

from __future__ import annotations

import os
import re
from pathlib import Path

from hilosync.errors import ConfigurationError

__all__ = ["read_key"]


def read_key(path: Path, create: bool) -> bytes:
    """The Ed25519 private key in a file, 32 bytes.

    Args:
        path: the file.
        create: make a new key where there is no such file.

    Raises:
        ConfigurationError: there is no such file, others may read it, or it holds something else. What it
            holds is never shown.
    """
    if create:
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            pass
        except OSError as error:
            raise ConfigurationError(f"cannot make the key file {path}: {error.strerror}; choose another") from error
        else:
            with os.fdopen(descriptor, "w") as stream:
                stream.write(os.urandom(32).hex() + "\n")
    try:
        text = path.read_text("ascii", errors="replace").strip()
        readers = path.stat().st_mode & 0o077
    except OSError as error:
        raise ConfigurationError(f"cannot read the key file {path}: {error.strerror}; give the run's own") from error
    if readers:
        raise ConfigurationError(
            f"the key file {path} may be read by others: expected its owner alone; chmod 600 it, or make a new key"
        )
    if re.fullmatch(r"[0-9a-f]{64}", text) is None:
        raise ConfigurationError(
            f"the key file {path} holds no key: expected 64 hex digits, got {len(text)} characters"
        )
    return bytes.fromhex(text)
