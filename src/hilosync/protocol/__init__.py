"""Sans-IO state machines: what learner and replicas do with bytes, without saying where bytes come from."""

from hilosync.protocol.evidence import Evidence, gather_evidence
from hilosync.protocol.learner import LearnerMachine, Proposal
from hilosync.protocol.recovery import Choice, Measurements, Rates, choose, new_epoch
from hilosync.protocol.replica import Applied, ReplicaMachine
from hilosync.protocol.run import Position, Replayed, Run, replay

__all__ = [
    "Applied",
    "Choice",
    "Evidence",
    "LearnerMachine",
    "Measurements",
    "Position",
    "Proposal",
    "Rates",
    "Replayed",
    "ReplicaMachine",
    "Run",
    "choose",
    "gather_evidence",
    "new_epoch",
    "replay",
]
