"""Rollouts without text: what a delivery says about itself, so that the checker can follow it."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from hilosync.errors import MalformedRollouts
from hilosync.log import Delivery, Order

__all__ = ["Rollouts", "read_rollouts", "write_rollouts"]


@dataclass(frozen=True)
class Rollouts:
    """One answered batch.

    Attributes:
        version: the policy version at dispatch.
        batch: the number within the version.
        held: the version that the worker answered with.
        digest: hex digest of that version, as the worker held it.
    """

    version: int
    batch: int
    held: int
    digest: str


def write_rollouts(order: Order, held: int, digest: bytes) -> bytes:
    """The content of a delivery."""
    return msgspec.json.encode(Rollouts(order.version, order.batch, held, digest.hex()))


def read_rollouts(delivery: Delivery) -> Rollouts:
    """Reads a delivery.

    Raises:
        MalformedRollouts: it is no answer to its order.
    """
    try:
        rollouts = msgspec.json.decode(delivery.content, type=Rollouts)
    except msgspec.MsgspecError as error:
        raise MalformedRollouts(f"rollouts for {delivery.order} by {delivery.worker}: {error}") from error
    if (rollouts.version, rollouts.batch) != (delivery.order.version, delivery.order.batch):
        raise MalformedRollouts(f"rollouts for {delivery.order} by {delivery.worker} answer another order: {rollouts}")
    return rollouts
