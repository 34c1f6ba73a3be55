"""A user of a faulty log: it tries again."""

from __future__ import annotations

from typing import Any

from hilosync.errors import LogUnavailable


class Persistent:
    """A store whose calls are repeated while an injected fault befalls them, as its users repeat them."""

    def __init__(self, store: Any):
        self._store = store

    def __getattr__(self, name: str) -> Any:
        def call(*args, **kwargs):
            for _ in range(100):
                try:
                    return getattr(self._store, name)(*args, **kwargs)
                except LogUnavailable as error:
                    if not str(error).startswith("injected"):
                        raise
            raise AssertionError(f"{name} failed a hundred times")

        return call
