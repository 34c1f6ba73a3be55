"""Sans-IO state machines: what learner and replicas do with bytes, without saying where bytes come from."""

from hilosync.protocol.evidence import Evidence, gather_evidence
from hilosync.protocol.learner import LearnerMachine, Proposal
from hilosync.protocol.replica import Applied, ReplicaMachine
from hilosync.protocol.run import Position, Replayed, Run, replay

__all__ = [
    "Applied",
    "Evidence",
    "LearnerMachine",
    "Position",
    "Proposal",
    "Replayed",
    "ReplicaMachine",
    "Run",
    "gather_evidence",
    "replay",
]
