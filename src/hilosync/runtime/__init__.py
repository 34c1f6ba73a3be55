"""Processes: what drives the protocol's machines over a log."""

from hilosync.log import Delivery, Order
from hilosync.runtime.dispatch import Dispatcher, Limits
from hilosync.runtime.learner import Learner, StepReport
from hilosync.runtime.presence import LEARNER, Heartbeat, Notice, Presence, Roll
from hilosync.runtime.replica import Replica
from hilosync.runtime.worker import Worker

__all__ = [
    "LEARNER",
    "Delivery",
    "Dispatcher",
    "Heartbeat",
    "Learner",
    "Limits",
    "Notice",
    "Order",
    "Presence",
    "Replica",
    "Roll",
    "StepReport",
    "Worker",
]
