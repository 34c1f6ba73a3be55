"""A worker's answer to an order: serve the replica's version, generate, stamp."""

from __future__ import annotations

from collections.abc import Callable

from hilosync.rl.rollouts import RolloutEngine
from hilosync.runtime import Order, Replica

__all__ = ["answer_with"]


def answer_with(engine: RolloutEngine, worker: str) -> Callable[[Replica, Order], bytes]:
    """What a `Worker` calls for every order: its batch, generated with the version that the replica holds."""
    served: list[int] = []

    def answer(replica: Replica, order: Order) -> bytes:
        if served != [replica.version]:
            replica.load_into(engine.model)
            served[:] = [replica.version]
        batch = engine.generate(
            order.version,
            order.batch,
            policy_version=replica.version,
            worker=worker,
            state_digest=replica.digest,
        )
        return batch.encode()

    return answer
