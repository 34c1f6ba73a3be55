"""A deterministic simulation of a whole run under faults, from one seed (docs/simulation.md)."""

from hilosync.sim.planted import PLANTS
from hilosync.sim.simulation import Outcome, simulate

__all__ = ["PLANTS", "Outcome", "simulate"]
