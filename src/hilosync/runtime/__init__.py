"""Processes: what drives the protocol's machines over a log."""

from hilosync.log import Delivery, Order
from hilosync.runtime.dispatch import Dispatcher, Limits
from hilosync.runtime.learner import Learner
from hilosync.runtime.orders import PACES, OrderBook, Pace
from hilosync.runtime.presence import LEARNER, Heartbeat, Notice, Presence, Roll
from hilosync.runtime.publisher import StepReport
from hilosync.runtime.replica import Replica
from hilosync.runtime.worker import Worker

__all__ = [
    "LEARNER",
    "PACES",
    "Delivery",
    "Dispatcher",
    "Heartbeat",
    "Learner",
    "Limits",
    "Notice",
    "Order",
    "OrderBook",
    "Pace",
    "Presence",
    "Replica",
    "Roll",
    "StepReport",
    "Worker",
]
