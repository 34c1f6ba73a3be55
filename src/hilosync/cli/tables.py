"""Where tables are printed."""

from __future__ import annotations

import sys

from rich.console import Console

__all__ = ["table_console"]

_WIDTH = 240
"""Columns of tables that go to a file or a pipe: where nobody looks, no width cuts them."""


def table_console(stderr: bool) -> Console:
    """A console as wide as the terminal, or wide enough for every table."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else _WIDTH)
