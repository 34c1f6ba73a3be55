"""What the processes of the file log's tests do. It imports little, since every process imports it."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import hilosync.log.objects as objects
from hilosync.errors import Fenced
from hilosync.log import open_log

# obstore has threads of its own, which a process forked from a user of it would lack: the fork server
# has imported it and never used it.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["hilosync.log"])
LIMIT = 120.0
ROUNDS = 20


def race_to_append(url: str, racer: int, start, results) -> None:
    steps = open_log(url, create=True).steps
    won = []
    for version in range(ROUNDS):
        start.wait(LIMIT)
        try:
            steps.append(version, bytes([racer]) * 10_000)
            won.append(version)
        except Fenced:
            pass
        # The next round may begin only when every racer has a predecessor to append to.
        assert steps.read(version, wait=LIMIT) is not None
    results.put((racer, won))


def race_to_take(url: str, racer: int, start, results) -> None:
    mailbox = open_log(url, create=True).mailbox
    start.wait(LIMIT)
    taken = []
    while (order := mailbox.take(f"w{racer}")) is not None:
        taken.append((order.version, order.batch))
    results.put((racer, taken))


def begin_and_die(url: str, at_sync: int) -> None:
    syncs = iter(range(1, 10))

    def die_or_sync(path: Path) -> None:
        if next(syncs) == at_sync:
            os.kill(os.getpid(), signal.SIGKILL)

    steps = open_log(url, create=True).steps
    objects.sync = die_or_sync
    steps.append(0, b"genesis")
