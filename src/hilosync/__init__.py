"""HiLo: train high, ship low.

A learner publishes one compressed gradient per step; replicas replay the same optimizer step and hold
the same bits at every policy version.
"""

from hilosync.compress import Dense, Spar
from hilosync.optim import AdamW
from hilosync.runtime import Learner, Replica

__all__ = ["AdamW", "Dense", "Learner", "Replica", "Spar"]
