"""A replica as a process of the simulation: the real `Replica`, which joins, follows and heals."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import torch

from hilosync.errors import Diverged, PeerSilent
from hilosync.log import Delivery, Order
from hilosync.optim import PolicyState
from hilosync.runtime import Notice, Replica
from hilosync.runtime.anchors import SnapshotWriter
from hilosync.runtime.retention import retain
from hilosync.runtime.snapshots import write_snapshot
from hilosync.sim.node import Node, Setting
from hilosync.sim.rollouts import write_rollouts
from hilosync.sim.world import World

__all__ = ["ReplicaProcess"]


class ReplicaProcess(Node):
    """Joins the run, then follows it, heals when it has diverged, and may write snapshots."""

    def __init__(self, world: World, name: str, setting: Setting, writes_snapshots: bool):
        super().__init__(world, name, setting)
        self.replica: Replica | None = None
        self._writes_snapshots = writes_snapshots
        self._writer: SnapshotWriter | None = None
        self._beat = 0
        self._reading = 0

    def ended(self) -> None:
        """See `Node.ended`."""
        self.replica = self._writer = None
        self._reading = 0
        super().ended()

    def tick(self) -> None:
        """Joins, or applies what there is, and says what it holds."""
        if self.replica is None:
            self.replica = self._join()
        known = len(self.replica.recoveries)
        order = None
        try:
            if self.setting.pace is not None:
                order = self.replica.log.mailbox.take(f"{self.name}-{self.life}")
            self._advance(self.replica, order)
        except Diverged as error:
            self.world.note(self.name, f"stops serving: {error}")
            self._heal(self.replica)
        finally:
            for recovery in self.replica.recoveries[known:]:
                self.world.count(f"recovery: {recovery.cause}, {recovery.choice.kind}")
        self._say(self.replica)
        if order is not None and self.held() is not None and order.version <= self.replica.version:
            content = write_rollouts(order, self.replica.version, self.replica.digest)
            self.replica.log.mailbox.deliver(Delivery(f"{self.name}-{self.life}", order, content))
            self.world.count("rollouts delivered")
        if self._writer is not None:
            self._writer.offer(self.replica._machine.state, self.replica.version)

    def _advance(self, replica: Replica, order: Order | None) -> None:
        """To the newest version, or to that of an order, which may have overtaken its record."""
        if order is None:
            replica.advance()
        else:
            with suppress(PeerSilent):
                replica.advance(to=order.version, wait=3.0)

    def held(self) -> tuple[int, bytes, PolicyState] | None:
        """See `Node.held`."""
        machine = None if self.replica is None else self.replica._machine
        if machine is None or machine.failure is not None:
            return None
        return machine.version, machine.digest, machine.state

    def truncate(self) -> None:
        """Keeps the newest snapshot and what follows it, whoever may be reading older ones."""

        def action() -> None:
            if self.replica is not None:
                self.world.count("truncation")
                left = retain(self.replica.log, self.replica.run, 1, lambda: ())
                self.world.note(self.name, f"truncates: {left}")

        self.world.at(0.0, self, lambda: self.guarded(action))

    def flip(self) -> None:
        """A bit of the replica's memory flips."""
        held, random = self.held(), self.world.random
        if self.replica is None or held is None or self.inside:
            return
        state = held[2]
        buffer = random.choice(state.buffers())
        element = random.randrange(buffer.numel())
        buffer.view(torch.int32)[element] ^= 1 << random.randrange(31)
        plan = self.replica.plan
        block = next(index for index, end in enumerate(plan.offsets[1:]) if element < end)
        self.member.flipped.setdefault(self.replica.version, set()).add(plan.blocks[block].name)
        self.world.count("bit flip")
        self.world.note(self.name, f"a bit of {plan.blocks[block].name} flips at version {self.replica.version}")
        if random.random() < 0.4:
            self.world.at(0.0, self, lambda: self.guarded(self._store))

    def _store(self) -> None:
        """Writes a snapshot just now, perhaps of a state with a flipped bit, which must be refused."""
        held = self.held()
        if self.replica is None or held is None or held[0] == 0:
            return
        try:
            write_snapshot(self.replica.log, self.replica.run, held[2].clone(), held[0])
        except Diverged:
            if held[0] not in self.member.flipped:
                raise
            self.world.count("snapshot of a flipped bit refused")

    def _heal(self, replica: Replica) -> None:
        try:
            replica.heal()
            self.world.count("healed")
        except Diverged as error:
            # A second accident at the same version: it gives up, and its operator starts it again.
            self.world.note(self.name, f"gives up: {error}")
            self.kill()

    def _join(self) -> Replica:
        log, disk = self.open()
        replica = Replica.join(
            log,
            checkpoint=disk,
            checkpoint_interval=self.setting.checkpoint_interval,
            clock=lambda: self.world.now,
        )

        def on_reading(version: int) -> None:
            self._reading = version
            self._say(replica)

        replica.recoverer.on_reading = on_reading
        if self._writes_snapshots:
            self._writer = SnapshotWriter(log, replica.run, self.setting.anchor_interval, self.setting.keep_recent)
        return replica

    def _say(self, replica: Replica) -> None:
        self._beat += 1
        notice = Notice(
            sender=self.name,
            incarnation=f"{self.name}-{self.life}",
            beat=self._beat,
            state="serving",
            version=replica.version,
            digest=replica.digest.hex(),
            reading=self._reading,
        )
        replica.log.mailbox.post(self.name, msgspec.json.encode(notice))
