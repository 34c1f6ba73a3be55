"""What a process measures, as one dict of numbers per step, and where it goes."""

from hilosync.metrics.base import Sink, Tracker
from hilosync.metrics.open import SINKS, open_tracker

__all__ = ["SINKS", "Sink", "Tracker", "open_tracker"]
