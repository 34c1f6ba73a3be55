"""The `hilo` command."""

from hilosync.cli.main import main

__all__ = ["main"]
