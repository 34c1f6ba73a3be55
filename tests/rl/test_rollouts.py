from __future__ import annotations

import msgspec
import numpy as np
import pytest

from hilosync.errors import ConfigurationError, MalformedRollouts
from hilosync.rl.rollouts import MAX_ROLLOUT_BYTES, RolloutBatch, RolloutEngine, RolloutSettings, prompts_of

SETTINGS = RolloutSettings(seed=3, prompts=4, samples=2)


@pytest.fixture(scope="module")
def engine(model, tokenizer, task):
    return RolloutEngine(model, tokenizer, task, SETTINGS)


@pytest.fixture(scope="module")
def batch(engine):
    return engine.generate(7, 1, worker="w1", state_digest=b"d" * 32)


def test_prompts_are_a_pure_function_of_seed_version_and_batch(task):
    assert prompts_of(SETTINGS, task, 7, 1) == prompts_of(SETTINGS, task, 7, 1)
    others = [
        prompts_of(SETTINGS, task, 8, 1),
        prompts_of(SETTINGS, task, 7, 2),
        prompts_of(RolloutSettings(seed=4, prompts=4, samples=2), task, 7, 1),
    ]
    assert all(not set(other) & set(prompts_of(SETTINGS, task, 7, 1)) for other in others)
    many = RolloutSettings(prompts=1000)
    assert min(prompts_of(many, task, 0, 0)) >= task.held_out


def test_any_worker_generates_the_same_batch(model, tokenizer, task, engine, batch):
    engine.generate(9, 0)
    other = RolloutEngine(model, tokenizer, task, SETTINGS).generate(7, 1, worker="w2")
    assert (other.tokens, other.log_probs, other.rewards) == (batch.tokens, batch.log_probs, batch.rewards)
    assert engine.generate(7, 2).tokens != batch.tokens


def test_rewards_belong_to_their_rows(tokenizer, task, batch):
    rows = batch.completions()
    assert len(rows) == SETTINGS.prompts * SETTINGS.samples
    for row, tokens in enumerate(rows):
        text = tokenizer.decode(tokens, skip_special_tokens=True)
        assert task.judge(batch.prompts[row // SETTINGS.samples], text).reward == batch.rewards[row]


def test_a_batch_survives_its_bytes(task, tokenizer, batch):
    again = RolloutBatch.decode(batch.encode())
    assert again == batch
    again.check(SETTINGS, task, len(tokenizer))
    assert [len(row) for row in again.behaviour_log_probs()] == again.lengths
    assert all(value <= 0 for row in again.behaviour_log_probs() for value in row)


@pytest.mark.parametrize(
    "change",
    [
        {"lengths": [1]},
        {"rewards": [0.0]},
        {"solved": []},
        {"tokens": b""},
        {"log_probs": b"123"},
        {"rewards": [float("nan")] * 8},
        {"version": -1},
        {"worker": "w" * 300},
        {"state_digest": b"d" * 65},
        {"prompts": []},
        {"samples": 0},
        {"lengths": [0] * 8},
    ],
)
def test_a_batch_whose_parts_disagree_is_refused(batch, change):
    with pytest.raises(MalformedRollouts):
        RolloutBatch.decode(msgspec.structs.replace(batch, **change).encode())


def test_bytes_that_are_no_batch_are_refused(batch):
    content = batch.encode()
    extra = msgspec.msgpack.encode({**msgspec.msgpack.decode(content), "more": 1})
    for damaged in (b"", b"\x00", content[:-1], content + b"\x00", extra, b"\x81\xa1\xff\x00", b"\xc1" * 50):
        with pytest.raises(MalformedRollouts):
            RolloutBatch.decode(damaged)
    with pytest.raises(MalformedRollouts, match="at most"):
        RolloutBatch.decode(bytes(MAX_ROLLOUT_BYTES + 1))


def test_an_answer_to_another_question_is_refused(task, tokenizer, batch):
    for settings in (RolloutSettings(4, 4, 2), RolloutSettings(3, 4, 3), RolloutSettings(3, 3, 2)):
        with pytest.raises(MalformedRollouts, match="seed and settings"):
            batch.check(settings, task, len(tokenizer))
    with pytest.raises(MalformedRollouts, match="expected tokens below"):
        batch.check(SETTINGS, task, int(np.frombuffer(batch.tokens, "<u4").max()))


def test_settings_that_generate_nothing_are_refused():
    for wrong in ({"prompts": 0}, {"samples": 0}, {"temperature": 0.0}):
        with pytest.raises(ConfigurationError):
            RolloutSettings(**wrong)
