"""The learner's side of a run, from options to a summary; what it shows is up to the caller."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from hilosync.baselines import begin_learner
from hilosync.bench.capture import capture_to
from hilosync.cli.keys import read_key
from hilosync.cli.options import RunOptions
from hilosync.cli.resume import options_to_json
from hilosync.errors import PeerSilent, Truncated, WireError
from hilosync.log import Log, Patience
from hilosync.optim import schedules
from hilosync.plan import bind
from hilosync.rl.evaluation import Evaluation
from hilosync.rl.loop import Admission, Progress, make_versions
from hilosync.rl.rollouts import RolloutBatch
from hilosync.runtime import LEARNER, Dispatcher, Heartbeat, Learner, Notice, Roll
from hilosync.wire import decode_record

__all__ = ["Session", "Summary"]


class _Curve(msgspec.Struct, frozen=True):
    """Held-out results by version."""

    version: list[int]
    pass_at_1: list[float]
    pass_at_4: list[float]
    megabytes: list[float]


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to; `summary.json`.

    Attributes:
        versions: policy versions made; by this learner, where it resumed the run.
        workers: workers that took part.
        budget: largest bytes of a record.
        budget_given: the budget as it was asked for.
        adapter_bytes: bytes of the bf16 adapter.
        ratio: median record bytes over adapter bytes.
        pass_at_1, pass_at_4: held-out, at the first and the last version.
        digest_checks, digest_mismatches: over all workers.
        reissued: orders offered again because a worker was lost.
        withdrawn: batches that became too old for any step.
        staleness: of the rollouts that steps used, in versions: mean and max.
        curve: the held-out results on the way.
    """

    sync: str
    compressor: str
    optimizer: str
    versions: int
    workers: int
    budget: int
    budget_given: str
    adapter_bytes: int
    record_bytes_median: int
    record_bytes_max: int
    ratio: float
    pass_at_1: dict[str, float]
    pass_at_4: dict[str, float]
    digest_checks: int
    digest_mismatches: int
    reissued: int
    withdrawn: int
    staleness: dict[str, float]
    encode_ms_median: float
    apply_ms_median: float
    seconds: float
    seed: int
    final_version: int
    final_digest: str
    worker_versions: dict[str, int]
    curve: _Curve


class Session:
    """Begins or resumes a run on a log and makes its versions.

    Attributes:
        learner: the learner; it has published nothing yet.
    """

    def __init__(self, options: RunOptions, log: Log, checkpoint: Path | None = None, resume: bool = False):
        """Loads the models, and writes the genesis or folds the log.

        Args:
            options: what to do.
            log: an empty log, or that of the run to resume.
            checkpoint: folder of the learner's checkpoint; None to keep none.
            resume: whether the log holds a run that is to go on.

        Raises:
            ConfigurationError: an unknown name, a budget too small, a missing model; nothing was written.
            RunMismatch: the run that is to go on has another configuration.
        """
        self.options = options
        patience = Patience(options.outage)
        log = patience.wrap(log)
        torch.set_num_threads(options.threads)
        optimizer = options.make_optimizer()
        compressor = options.make_compressor()
        engine = options.recipe.engine()
        self._trainer = options.recipe.trainer(engine)
        rates = {
            "constant": schedules.constant(options.lr),
            "linear": schedules.linear(options.lr, options.versions),
            "cosine": schedules.cosine(options.lr, options.versions),
        }
        capture = options.capture
        conduct: dict[str, Any] = {
            "max_grad_norm": options.max_grad_norm,
            "schedule": rates[options.schedule],
            "on_gradient": None if capture is None else capture_to(capture, bind(engine.model).plan),
            "anchor_interval": options.anchor_interval,
            "keep_recent": options.keep_recent,
            "signing_key": None if options.sign is None else read_key(Path(options.sign), create=not resume),
            # A learner that ships whole adapters has an optimizer state of its own, which no checkpoint keeps.
            "checkpoint": None if options.sync == "full" else checkpoint,
        }
        if resume:
            self.learner = Learner.resume(engine.model, optimizer=optimizer, compressor=compressor, log=log, **conduct)
            self.learner.extra = {"options": options_to_json(options)}
        else:
            self.learner = begin_learner(
                engine.model,
                sync=options.sync,
                optimizer=optimizer,
                compressor=compressor,
                log=log,
                seed=options.recipe.seed,
                base_model=options.recipe.student,
                task=options.recipe.to_json(),
                extra={"options": options_to_json(options)},
                **conduct,
            )
        self._begun_at = self.learner.version
        self._dispatcher = Dispatcher(log.mailbox, options.recipe.pace, options.limits, patience.clock)

    def run(self, show: Callable[[Progress, Roll], None], watch: Callable[[Roll], None]) -> Summary:
        """Makes all versions and waits until every living worker holds the last one.

        Args:
            show: called at every version.
            watch: called now and then while waiting for rollouts.

        Raises:
            PeerSilent: no worker lives.
        """
        options, learner = self.options, self.learner
        started = time.perf_counter()
        history: list[Progress] = []
        staleness = options.recipe.max_staleness
        admission = Admission(self._trainer, learner, staleness, _digests(learner, staleness))
        notice = Notice(
            sender=LEARNER,
            incarnation=f"learner-{os.urandom(4).hex()}",
            beat=0,
            state="serving",
            oldest=max(0, learner.version - staleness),
        )

        def offer(version: int) -> None:
            admission.note()
            self._dispatcher.offer(version)
            heartbeat.update(version=version, digest=learner.digest.hex(), oldest=self._dispatcher.oldest)

        def collect(version: int) -> list[RolloutBatch]:
            try:
                return self._dispatcher.collect(version, admission, watch)
            except (PeerSilent, WireError):
                # Of a learner that was replaced while it hung, the workers are ahead, or done.
                learner.check_unfenced()
                raise

        with Heartbeat(learner.log.mailbox, notice) as heartbeat:
            for progress in make_versions(
                learner,
                self._trainer,
                collect,
                versions=max(0, options.versions - learner.version),
                evaluate_every=options.evaluate_every,
                problems=options.problems,
                offer=offer,
            ):
                history.append(progress)
                show(progress, self._dispatcher.presence.look())
            heartbeat.update(state="finished", version=learner.version, digest=learner.digest.hex())
            roll = self._farewell(watch)
            learner.close(options.limits.patience)
        return self._summary(history, roll, time.perf_counter() - started)

    def _farewell(self, watch: Callable[[Roll], None]) -> Roll:
        """Waits until no living worker is still on its way to the last version."""
        deadline = time.monotonic() + self.options.limits.patience
        while True:
            roll = self._dispatcher.presence.look()
            watch(roll)
            waiting = [w for w in roll.workers() if roll.alive(w.incarnation, self.options.limits.silence)]
            if not waiting or time.monotonic() > deadline:
                return roll
            time.sleep(0.05)

    def _summary(self, history: list[Progress], roll: Roll, seconds: float) -> Summary:
        options, learner = self.options, self.learner
        steps = [progress.step for progress in history if progress.step is not None]
        backward = [progress.backward for progress in history if progress.backward is not None]
        sizes = [step.record_bytes for step in steps]
        evaluated = [(p.version, p.evaluation) for p in history if p.evaluation is not None]
        first, last = evaluated[0][1], evaluated[-1][1]
        workers = roll.workers()
        median = int(_median(sizes))
        applied = [worker.apply_seconds for worker in workers if worker.checks]
        return Summary(
            sync=options.sync,
            compressor="bf16 adapter" if options.sync == "full" else options.compressor,
            optimizer=options.optimizer,
            versions=len(steps),
            workers=len(workers),
            budget=learner.run.record_limit,
            budget_given="none" if learner.run.genesis.budget is None else options.budget,
            adapter_bytes=learner.plan.adapter_bytes,
            record_bytes_median=median,
            record_bytes_max=max(sizes, default=0),
            ratio=median / learner.plan.adapter_bytes,
            pass_at_1={"start": first.pass_at_1, "end": last.pass_at_1},
            pass_at_4={"start": first.pass_at_4, "end": last.pass_at_4},
            digest_checks=sum(worker.checks for worker in workers),
            digest_mismatches=sum(worker.mismatches for worker in workers),
            reissued=self._dispatcher.reissued,
            withdrawn=self._dispatcher.withdrawn,
            staleness={
                "mean": statistics.mean([report.staleness_mean for report in backward] or [0.0]),
                "max": max((report.staleness_max for report in backward), default=0),
            },
            encode_ms_median=1e3 * _median([step.encode_seconds for step in steps]),
            apply_ms_median=1e3 * _median(applied),
            seconds=seconds,
            seed=options.recipe.seed,
            final_version=learner.version,
            final_digest=learner.digest.hex(),
            worker_versions={worker.sender: worker.version for worker in workers},
            curve=_curve(evaluated, sizes, self._begun_at),
        )


def _curve(evaluated: list[tuple[int, Evaluation]], sizes: list[int], begun_at: int) -> _Curve:
    return _Curve(
        version=[version for version, _ in evaluated],
        pass_at_1=[result.pass_at_1 for _, result in evaluated],
        pass_at_4=[result.pass_at_4 for _, result in evaluated],
        megabytes=[sum(sizes[: version - begun_at]) / 1e6 for version, _ in evaluated],
    )


def _median(values: Sequence[float]) -> float:
    """The median; 0 of nothing, as in a run that had all its versions when it was resumed."""
    return statistics.median(values) if values else 0.0


def _digests(learner: Learner, staleness: int) -> dict[int, bytes]:
    """Digests of the versions before the learner's whose rollouts it may still be handed."""
    digests: dict[int, bytes] = {}
    for version in range(max(1, learner.version - staleness), learner.version):
        try:
            record = learner.log.steps.read(version)
        except Truncated:
            continue
        if record is not None:
            digests[version] = decode_record(record, learner.run.limits).digest
    return digests
