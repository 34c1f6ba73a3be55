"""Where a run's records, blobs and rollouts live. Knows nothing of what the bytes mean."""

from hilosync.log.address import absolute_address, check_writable, open_log, open_objects, parse_address
from hilosync.log.base import BlobStore, Delivery, Log, Mailbox, Order, SnapshotIndex, StepLog
from hilosync.log.faulty import Faults
from hilosync.log.patient import Patience
from hilosync.log.polling import Polling

__all__ = [
    "BlobStore",
    "Delivery",
    "Faults",
    "Log",
    "Mailbox",
    "Order",
    "Patience",
    "Polling",
    "SnapshotIndex",
    "StepLog",
    "absolute_address",
    "check_writable",
    "open_log",
    "open_objects",
    "parse_address",
]
