"""Machines of one small run, and records that they made."""

from __future__ import annotations

import pytest
from small_run import genesis_of, gradient

from hilosync.protocol import LearnerMachine, ReplicaMachine, Run


@pytest.fixture
def genesis():
    return genesis_of()


@pytest.fixture
def learner(genesis):
    return LearnerMachine(Run.of(genesis))


@pytest.fixture
def replica(genesis):
    return ReplicaMachine(Run.of(genesis))


@pytest.fixture
def records(learner, rng):
    """Six accepted records."""
    made = []
    for _ in range(6):
        made.append(learner.propose(gradient(rng)).data)
        learner.accept(learner.pending.version)
    return made
