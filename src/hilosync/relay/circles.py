"""Relays that read each other would wait for each other: each names itself upstream, and knows its own name."""

from __future__ import annotations

import re
import secrets

__all__ = ["LOOP", "PassedRelays"]

LOOP = "CDN-Loop"
"""Header that names the caches which a request has come through (RFC 8586)."""

_RELAYS = 64
"""Relays whose names are handed on, at most."""


class PassedRelays:
    """The relays that read through this one, as far as they have told, and itself."""

    def __init__(self) -> None:
        self._own = f"hilo-{secrets.token_hex(8)}"
        self._names = [self._own]

    @property
    def headers(self) -> dict[str, str]:
        """What to tell an upstream."""
        return {LOOP: ", ".join(self._names)}

    def include_itself(self, told: str) -> bool:
        """Whether a request comes from this very relay, through whatever others; its `LOOP` header is `told`."""
        names = re.findall(r"\bhilo-[0-9a-f]{16}\b", told)
        new = [name for name in dict.fromkeys(names) if name not in self._names]
        self._names += new[: _RELAYS - len(self._names)]
        return self._own in names
