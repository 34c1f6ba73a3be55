"""Random histories of learners and replicas over a list for a log: at every version every replica has the log's bits.

The machines are sans-IO, so a history is a list of calls: deliver, drop, duplicate, reorder, corrupt, crash, restart,
join, truncate, fence. The model is the list of accepted records and the state after each.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from small_run import PLAN, genesis_of

from hilosync.compress import TopK
from hilosync.errors import ChainBroken, Diverged, HiLoError, WireError
from hilosync.optim import SGDM, PolicyState
from hilosync.protocol import LearnerMachine, Position, ReplicaMachine, Run, replay
from hilosync.wire import Setup, decode_record

GENESIS = genesis_of(
    optimizer=Setup("sgdm", SGDM().settings()), compressor=Setup("topk", TopK().settings()), budget=420
)

picks = st.integers(0, 1 << 16)


class Member:
    """A replica's process: its machine, what its disk holds, and the versions it has applied in this life."""

    def __init__(self, machine: ReplicaMachine):
        self.machine: ReplicaMachine | None = machine
        self.disk: tuple[PolicyState, Position] | None = None
        self.applied: list[int] = [machine.version]
        self.flipped: str | None = None


class History(RuleBasedStateMachine):
    """Learners and replicas of one run, and the log between them."""

    new_replica = ReplicaMachine

    @initialize()
    def begin(self):
        self.run = Run.of(GENESIS)
        first = ReplicaMachine(self.run)
        self.log = [GENESIS]
        self.oldest = 1
        self.states = [(first.state.clone(), first.position)]
        self.reference = first
        self.epoch = 1
        self.learners = [LearnerMachine(self.run, epoch=1)]
        self.members = [Member(self.new_replica(self.run))]
        self.snapshots = {0}

    @property
    def head(self) -> int:
        return len(self.log) - 1

    def retained(self, version: int) -> bool:
        return self.oldest <= version <= self.head

    def live(self) -> list[Member]:
        return [member for member in self.members if member.machine is not None]

    def member(self, pick: int) -> Member:
        return self.live()[pick % len(self.live())]

    # ── the learner ──────────────────────────────────────────────────────────────────────────────

    @precondition(lambda self: self.learners)
    @rule(pick=picks, seed=st.integers(0, 1 << 16), acknowledged=st.booleans())
    def append(self, pick: int, seed: int, acknowledged: bool):
        """A step is proposed, or the pending one offered again; its acknowledgement may be lost."""
        learner = self.learners[pick % len(self.learners)]
        if learner.pending is None:
            learner.propose(torch.from_numpy(np.random.default_rng(seed).standard_normal(PLAN.size)).float())
        version, data = learner.pending.version, learner.pending.data
        if version <= self.head and self.log[version] != data:
            self.learners.remove(learner)  # fenced: it stops, and the log is as it was
            return
        if version > self.head:
            assert version == self.head + 1
            self.log.append(data)
            assert self.reference.receive(data).new
            assert self.reference.digest == learner.digest
            self.states.append((self.reference.state.clone(), self.reference.position))
        if acknowledged:
            learner.accept(version)

    @precondition(lambda self: len(self.learners) < 3)
    @rule()
    def start_a_learner(self):
        """One more learner starts from the head of the log, whether or not another still lives."""
        self.epoch += 1
        state, position = self.states[-1]
        self.learners.append(resumed(self.run, self.epoch, state.clone(), position))

    @precondition(lambda self: self.learners)
    @rule(pick=picks)
    def crash_the_learner(self, pick: int):
        self.learners.pop(pick % len(self.learners))

    # ── what reaches a replica ───────────────────────────────────────────────────────────────────

    @precondition(lambda self: self.live())
    @rule(pick=picks, count=st.integers(1, 4))
    def deliver(self, pick: int, count: int):
        member = self.member(pick)
        for _ in range(count):
            version = member.machine.version + 1
            if self.retained(version):
                self.receive(member, version)

    @precondition(lambda self: self.live())
    @rule(pick=picks, version=picks)
    def deliver_any(self, pick: int, version: int):
        """Duplicates, records that overtook others, records after a dropped one."""
        member = self.member(pick)
        version = 1 + version % (self.head + 1)
        if not self.retained(version):
            return
        held = member.machine.version
        if version > held + 1:
            with pytest.raises(ChainBroken):
                member.machine.receive(self.log[version])
            assert member.machine.version == held and member.machine.failure is None
        elif version <= held:
            assert not member.machine.receive(self.log[version]).new
            assert member.machine.version == held
        else:
            self.receive(member, version)

    @precondition(lambda self: self.live() and self.head)
    @rule(pick=picks, where=picks, bit=st.integers(0, 7))
    def deliver_damaged(self, pick: int, where: int, bit: int):
        member = self.member(pick)
        version = min(member.machine.version + 1, self.head)
        if self.retained(version):
            data = bytearray(self.log[version])
            data[where % len(data)] ^= 1 << bit
            with pytest.raises(WireError):
                member.machine.receive(bytes(data))

    def receive(self, member: Member, version: int):
        """The next record; a replica with a flipped bit finds it, names the tensor and goes on from a snapshot."""
        try:
            assert member.machine.receive(self.log[version]).new
        except Diverged as error:
            assert member.flipped in error.tensors and error.version == version
            with pytest.raises(Diverged):
                member.machine.receive(self.log[version])
            self.rebase(member)
        else:
            member.applied.append(version)
        member.flipped = None

    # ── life and death of replicas ───────────────────────────────────────────────────────────────

    @precondition(lambda self: self.live())
    @rule(pick=picks)
    def checkpoint(self, pick: int):
        member = self.member(pick)
        if member.flipped is None:
            member.disk = (member.machine.state.clone(), member.machine.position)

    @precondition(lambda self: self.live())
    @rule(pick=picks)
    def crash(self, pick: int):
        self.member(pick).machine = None

    @rule()
    def restart(self):
        for member in self.members:
            if member.machine is None:
                member.machine, member.flipped = self.new_replica(self.run), None
                if member.disk is not None and member.disk[1].version + 1 >= self.oldest:
                    member.machine.rebase(member.disk[0].clone(), member.disk[1])
                    member.applied = [member.machine.version]
                else:
                    self.rebase(member)

    @precondition(lambda self: len(self.members) < 4)
    @rule()
    def join(self):
        member = Member(self.new_replica(self.run))
        self.members.append(member)
        self.rebase(member)

    @precondition(lambda self: len(self.members) > 1)
    @rule(pick=picks)
    def leave(self, pick: int):
        self.members.pop(pick % len(self.members))

    @precondition(lambda self: self.live())
    @rule(pick=picks, element=st.integers(0, PLAN.size - 1), bit=st.integers(0, 30), slot=st.booleans())
    def flip(self, pick: int, element: int, bit: int, slot: bool):
        """A cosmic ray, of which one at a time is enough. It is found when the next record is applied."""
        member = self.member(pick)
        if member.flipped is None:
            buffer = member.machine.state.slots["m"] if slot else member.machine.state.params
            buffer.view(torch.int32)[element] ^= 1 << bit
            block = next(i for i, first in enumerate(PLAN.offsets[1:]) if element < first)
            member.flipped = PLAN.blocks[block].name

    def rebase(self, member: Member):
        """The newest snapshot, always one that the retained records continue."""
        version = max(self.snapshots)
        state, position = self.states[version]
        member.machine.rebase(state.clone(), position)
        member.applied, member.flipped = [version], None

    # ── retention ────────────────────────────────────────────────────────────────────────────────

    @rule()
    def snapshot(self):
        self.snapshots.add(self.head)

    @rule(pick=picks)
    def truncate(self, pick: int):
        before = sorted(self.snapshots)[pick % len(self.snapshots)]
        self.snapshots = {version for version in self.snapshots if version >= before}
        self.oldest = max(self.oldest, before)
        for member in self.live():
            if member.machine.version + 1 < self.oldest:
                self.rebase(member)

    # ── what holds at every moment ───────────────────────────────────────────────────────────────

    @invariant()
    def every_live_replica_has_the_digest_and_the_bits_of_its_version(self):
        for member in self.live():
            machine = member.machine
            state, position = self.states[machine.version]
            assert machine.failure is None and machine.position == position
            if member.flipped is None:
                pairs = zip(machine.state.buffers(), state.buffers(), strict=True)
                assert all(torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in pairs)

    @invariant()
    def applied_versions_are_consecutive_without_repeats(self):
        for member in self.live():
            assert member.applied == list(range(member.applied[0], member.machine.version + 1))


def resumed(run: Run, epoch: int, state: PolicyState, position: Position) -> LearnerMachine:
    learner = LearnerMachine(run, epoch=epoch)
    learner.rebase(state, position, torch.zeros(run.plan.size), run.compressor.init(run.plan))
    return learner


class Trusting(ReplicaMachine):
    """Applies whatever comes next."""

    def _check_chain(self, record):
        pass


class Forgetful(ReplicaMachine):
    """Makes the step of a duplicate once more."""

    def receive(self, data):
        record = decode_record(data, self.run.limits)
        if self.failure is None and record.version == self.version:
            replay(self.run, self.state, self.digest, record.version, record.payload, record.scalars)
        return super().receive(data)


class Sharing(ReplicaMachine):
    """Leaves something of the state behind when it goes on from another one."""

    def rebase(self, state, position):
        super().rebase(PolicyState(state.params, self.state.slots), position)


@pytest.mark.parametrize("broken", [Trusting, Forgetful, Sharing])
def test_random_histories_find_a_broken_machine(broken):
    class Broken(History):
        new_replica = broken

    # About one history in seventy meets what is broken, and Hypothesis draws other ones when other modules are
    # imported: the limit is far above what chance can need, and it stops at the first find.
    find = settings(max_examples=2000, stateful_step_count=40, phases=[Phase.generate], report_multiple_bugs=False)
    with pytest.raises((AssertionError, HiLoError, pytest.fail.Exception, ExceptionGroup)):
        run_state_machine_as_test(Broken, settings=find)


History.TestCase.settings = settings(max_examples=40, stateful_step_count=40)
TestHistory = History.TestCase
