"""The `hilo` command."""
