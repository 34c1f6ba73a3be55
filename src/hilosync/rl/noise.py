"""Random numbers that depend on their key alone.

Sampling noise comes from a counter-based generator (Philox) whose key is a hash of what the noise
is for. Whichever process draws it, and whatever that process drew before, the numbers are the same.
"""

from __future__ import annotations

import numpy as np
from blake3 import blake3

__all__ = ["generator"]


def generator(purpose: str, *key: int) -> np.random.Generator:
    """A fresh Philox generator for (purpose, key)."""
    words = " ".join(str(int(number)) for number in key)
    digest = blake3(f"hilo {purpose} {words}".encode()).digest(16)
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
