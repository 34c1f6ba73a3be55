"""Random histories of two learners and a reader over a faulty log, against a list as the model."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from persistent import Persistent

from hilosync.errors import Fenced, LogUnavailable, Truncated
from hilosync.log import Faults, open_log

logs = itertools.count()
contents = st.sampled_from([b"", b"a", b"b"])


class StepLogHistory(RuleBasedStateMachine):
    """The model is the list of records and the oldest version that is kept."""

    @initialize(seed=st.integers(0, 1 << 32))
    def begin(self, seed: int):
        faults = Faults(seed, fail_before=0.2, lose_acknowledgement=0.3, duplicate=0.3)
        url = f"memory:model {next(logs)}"
        self.learners = [Persistent(faults.wrap(open_log(url, create=True)).steps) for _ in range(2)]
        self.records: list[bytes] = []
        self.oldest = 0

    def present(self, version: int) -> bool:
        return version < len(self.records) and (version == 0 or version >= self.oldest)

    @rule(learner=st.integers(0, 1), back=st.integers(-1, 3), content=contents)
    def append(self, learner: int, back: int, content: bytes):
        version = max(0, len(self.records) - back)
        steps = self.learners[learner]
        if 0 < version < self.oldest:
            with pytest.raises(Fenced, match="and removed it"):
                steps.append(version, content)
        elif version > len(self.records):
            with pytest.raises(LogUnavailable, match="is missing"):
                steps.append(version, content)
        elif self.present(version) and self.records[version] != content:
            with pytest.raises(Fenced):
                steps.append(version, content)
        else:
            steps.append(version, content)
            if version == len(self.records):
                self.records.append(content)

    @rule(learner=st.integers(0, 1), version=st.integers(0, 12))
    def read(self, learner: int, version: int):
        steps = self.learners[learner]
        if 0 < version < self.oldest:
            with pytest.raises(Truncated):
                steps.read(version)
        else:
            assert steps.read(version) == (self.records[version] if self.present(version) else None)

    @rule(learner=st.integers(0, 1), before=st.integers(0, 12))
    def forget(self, learner: int, before: int):
        self.learners[learner].forget(before)
        before = min(before, len(self.records) - 1)
        if before > max(1, self.oldest):
            self.oldest = before

    @invariant()
    def the_head_is_the_newest_record(self):
        assert self.learners[0].head() == len(self.records) - 1
        assert self.learners[1].head(at_least=max(0, len(self.records) - 2)) == len(self.records) - 1


StepLogHistory.TestCase.settings = settings(max_examples=40, stateful_step_count=30)
TestStepLogHistory = StepLogHistory.TestCase
