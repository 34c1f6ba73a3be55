"""Rollouts: which prompts a batch asks for, a worker's engine that answers them, and the bytes between.

Prompts and noise of a batch are pure functions of (run seed, version, batch), and the policy of a
version has the same bits everywhere, so any worker answers a batch with the same tokens (on the same
kind of machine with the same thread count: a forward pass is not bit-stable across those).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np

from hilosync.errors import ConfigurationError, MalformedRollouts
from hilosync.rl.merging import merged
from hilosync.rl.noise import generator
from hilosync.rl.sampling import end_tokens, sample
from hilosync.rl.tasks.base import Task

__all__ = ["MAX_ROLLOUT_BYTES", "RolloutBatch", "RolloutEngine", "RolloutSettings", "prompts_of"]

MAX_ROLLOUT_BYTES = 64 << 20
"""Longest encoded batch that is decoded at all."""

_Name = Annotated[str, msgspec.Meta(max_length=256)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_Row = Annotated[list[_Count], msgspec.Meta(max_length=2**16)]


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """What learner and workers of a run must agree on; part of the run's configuration.

    Attributes:
        seed: of the run.
        prompts: prompts per batch.
        samples: completions per prompt.
        temperature: of sampling.
    """

    seed: int = 0
    prompts: int = 8
    samples: int = 4
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if self.prompts < 1 or self.samples < 1:
            raise ConfigurationError(
                f"expected at least one prompt and one sample, got {self.prompts} and {self.samples}"
            )
        if not 0.0 < self.temperature < 100.0:
            raise ConfigurationError(f"expected a temperature above 0 and below 100, got {self.temperature}")


def prompts_of(settings: RolloutSettings, task: Task, version: int, batch: int) -> tuple[int, ...]:
    """Problem indices of a batch: a pure function of (seed, version, batch), never a held-out problem."""
    noise = generator("prompts", settings.seed, version, batch)
    return tuple(int(index) for index in noise.integers(task.held_out, 2**48, size=settings.prompts))


class RolloutBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A worker's answer to one order.

    Attributes:
        version: the policy version at dispatch; with the batch it fixes prompts and noise.
        batch: index of the batch within the version.
        policy_version: the policy version that generated every token: the one at dispatch, or a later one
            that the worker held already.
        worker: who generated it.
        state_digest: digest of the replica state that was served (empty if there is none).
        prompts: problem indices, P of them.
        samples: k, completions per prompt.
        tokens: uint32 little-endian token ids of all P · k completions, end to end.
        lengths: length of each completion, rows in prompt order.
        log_probs: float32 little-endian behaviour log-probabilities, parallel to `tokens`: those of the model
            that drew the tokens, temperature applied.
        rewards: one per completion.
        solved: one per completion.
        seconds: wall time of generating and judging.
    """

    version: _Count
    batch: _Count
    policy_version: _Count
    worker: _Name
    state_digest: Annotated[bytes, msgspec.Meta(max_length=64)]
    prompts: Annotated[list[_Count], msgspec.Meta(min_length=1, max_length=2**14)]
    samples: Annotated[int, msgspec.Meta(ge=1, le=2**10)]
    tokens: bytes
    lengths: Annotated[list[Annotated[int, msgspec.Meta(ge=1, le=2**20)]], msgspec.Meta(max_length=2**18)]
    log_probs: bytes
    rewards: Annotated[list[float], msgspec.Meta(max_length=2**18)]
    solved: Annotated[list[bool], msgspec.Meta(max_length=2**18)]
    seconds: float

    def encode(self) -> bytes:
        """The batch as MessagePack."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, content: bytes) -> RolloutBatch:
        """Reads a batch and checks that its parts agree with one another.

        Raises:
            MalformedRollouts: the bytes are not such a batch.
        """
        if len(content) > MAX_ROLLOUT_BYTES:
            raise MalformedRollouts(f"expected at most {MAX_ROLLOUT_BYTES} bytes of rollouts, got {len(content)}")
        try:
            batch = msgspec.msgpack.decode(content, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise MalformedRollouts(f"a delivery is not a batch of rollouts: {error}") from error
        rows, total = len(batch.prompts) * batch.samples, sum(batch.lengths)
        for name, found, expected in (
            ("lengths", len(batch.lengths), rows),
            ("rewards", len(batch.rewards), rows),
            ("solved", len(batch.solved), rows),
            ("bytes of tokens", len(batch.tokens), 4 * total),
            ("bytes of log-probabilities", len(batch.log_probs), 4 * total),
        ):
            if found != expected:
                raise MalformedRollouts(
                    f"rollouts of version {batch.version} batch {batch.batch} by {batch.worker!r}: "
                    f"expected {expected} {name}, got {found}"
                )
        finite = np.isfinite(batch.rewards).all() and np.isfinite(np.frombuffer(batch.log_probs, "<f4")).all()
        if not finite:
            raise MalformedRollouts(
                f"rollouts of version {batch.version} batch {batch.batch} by {batch.worker!r}: "
                "a reward or log-probability is NaN or infinite"
            )
        return batch

    def check(self, settings: RolloutSettings, task: Task, vocabulary: int) -> None:
        """Checks that this is an answer to what the run asks for.

        Raises:
            MalformedRollouts: other prompts, another number of samples, a token outside the
                vocabulary, or a completion longer than the task allows.
        """
        who = f"rollouts of version {self.version} batch {self.batch} by {self.worker!r}"
        expected = prompts_of(settings, task, self.version, self.batch)
        if tuple(self.prompts) != expected or self.samples != settings.samples:
            raise MalformedRollouts(
                f"{who}: expected {settings.samples} samples of problems {expected[:2]}…, got {self.samples} of "
                f"{tuple(self.prompts[:2])}…; does the worker run with the learner's seed and settings?"
            )
        largest, longest = int(np.frombuffer(self.tokens, "<u4").max()), max(self.lengths)
        if largest >= vocabulary or longest > task.answer_tokens:
            raise MalformedRollouts(
                f"{who}: expected tokens below {vocabulary} and at most {task.answer_tokens} of them in a row, "
                f"got token {largest} and length {longest}"
            )

    def completions(self) -> list[list[int]]:
        """Token ids of each completion."""
        return _split(np.frombuffer(self.tokens, "<u4"), self.lengths)

    def behaviour_log_probs(self) -> list[list[float]]:
        """Log-probability of each token under the policy that drew it."""
        return _split(np.frombuffer(self.log_probs, "<f4"), self.lengths)


def _split(flat: np.ndarray, lengths: Sequence[int]) -> list[list[Any]]:
    return [part.tolist() for part in np.split(flat, np.cumsum(lengths)[:-1])]


class RolloutEngine:
    """Answers orders with a Hugging Face model, plain or with a LoRA adapter.

    The engine reads the model's weights at each call: whoever owns the model loads a policy
    version into it before `generate` and must not change it meanwhile.
    """

    def __init__(self, model: Any, tokenizer: Any, task: Task, settings: RolloutSettings):
        self.model = model
        self.tokenizer = tokenizer
        self.task = task
        self.settings = settings
        self.ends = end_tokens(model, tokenizer)

    def generate(
        self,
        version: int,
        batch: int,
        *,
        policy_version: int | None = None,
        worker: str = "",
        state_digest: bytes = b"",
    ) -> RolloutBatch:
        """Generates and judges the completions of one batch with the policy as it is now.

        Args:
            version: the policy version at dispatch.
            batch: index of the batch within the version.
            policy_version: the policy version that the model holds, where it is a later one.
            worker: name of the caller.
            state_digest: digest of the replica's state that the model holds.
        """
        started = time.perf_counter()
        settings = self.settings
        indices = prompts_of(settings, self.task, version, batch)
        samples = sample(
            merged(self.model),
            [self.tokenizer.encode(self.task.prompt(index), add_special_tokens=False) for index in indices],
            samples=settings.samples,
            length=self.task.answer_tokens,
            noise=generator("rollouts", settings.seed, version, batch),
            temperature=settings.temperature,
            ends=self.ends,
            padding=self.tokenizer.pad_token_id,
        )
        texts = self.tokenizer.batch_decode(samples.tokens, skip_special_tokens=True)
        verdicts = [self.task.judge(indices[row // settings.samples], text) for row, text in enumerate(texts)]
        flat_log_probs = [value for row in samples.log_probs for value in row]
        return RolloutBatch(
            version=version,
            batch=batch,
            policy_version=version if policy_version is None else policy_version,
            worker=worker,
            state_digest=state_digest,
            prompts=list(indices),
            samples=settings.samples,
            tokens=np.concatenate(samples.tokens).astype("<u4").tobytes(),
            lengths=[len(row) for row in samples.tokens],
            log_probs=np.asarray(flat_log_probs, dtype="<f4").tobytes(),
            rewards=[verdict.reward for verdict in verdicts],
            solved=[verdict.solved for verdict in verdicts],
            seconds=time.perf_counter() - started,
        )
