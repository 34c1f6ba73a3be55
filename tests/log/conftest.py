"""Every implementation of the log seam, by name: each test that asks for `opens` runs over all of them.

A new implementation joins the conformance suite by one entry of `IMPLEMENTATIONS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from persistent import Persistent

from hilosync.log import Faults, Log, open_log

IMPLEMENTATIONS: dict[str, Callable[[str, Any], str]] = {
    "memory": lambda name, folder: f"memory:{name}",
    "file": lambda name, folder: f"file:{folder}/runs/log",
}


@pytest.fixture(params=[(name, faulty) for faulty in (False, True) for name in IMPLEMENTATIONS], ids=str)
def opens(request, tmp_path) -> Callable[[], Log]:
    """Opens one new, empty log; each call is a view of its own, as another process would have."""
    name, faulty = request.param
    url = IMPLEMENTATIONS[name](request.node.nodeid, tmp_path)
    seeds = iter(range(request.config.getoption("seed"), 1 << 62))

    def opener() -> Log:
        log = open_log(url, create=True)
        if not faulty:
            return log
        faults = Faults(next(seeds), fail_before=0.2, lose_acknowledgement=0.2, duplicate=0.2)
        log = faults.wrap(log)
        return replace(
            log,
            steps=Persistent(log.steps),
            blobs=Persistent(log.blobs),
            snapshots=Persistent(log.snapshots),
            mailbox=Persistent(log.mailbox),
        )

    return opener


@pytest.fixture
def log(opens) -> Log:
    return opens()
