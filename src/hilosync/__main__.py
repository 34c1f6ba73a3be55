"""`python -m hilosync` is `hilo`."""

from hilosync.cli import main

main()
