"""Does the compressed policy learn as well? The demo's task, every way of shipping, several seeds.

Learner and rollout engine share one process here: what a worker generates is a function of the policy's
bits, the seed and the batch, so the curves are those of the same run with worker processes.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

from hilosync.baselines import begin_learner
from hilosync.compress import get_compressor
from hilosync.optim import get_optimizer
from hilosync.rl.lockstep import lockstep
from hilosync.rl.recipe import Recipe
from hilosync.rl.rollouts import RolloutBatch

__all__ = ["WAYS", "Way", "learning_table", "run_learning"]


@dataclass(frozen=True)
class Way:
    """One way of keeping workers current.

    Attributes:
        name: as the table shows it.
        compressor: registered name; "" ships the whole adapter.
        share: of the one-rank-per-factor budget.
    """

    name: str
    compressor: str
    share: float = 1.0


WAYS = (
    Way("full sync", ""),
    Way("spar 1×", "spar"),
    Way("spar_rd 1×", "spar_rd"),
    Way("spar_rd ½×", "spar_rd", 0.5),
    Way("spar_rd ¼×", "spar_rd", 0.25),
    Way("powersgd 1×", "powersgd"),
    Way("topk 1×", "topk"),
)


def _learn_once(way: Way, seed: int, versions: Sequence[int], lr: float, problems: int) -> dict[str, Any]:
    """One run: pass@1 and pass@4 at the given versions, and the median bytes of a record."""
    import torch

    torch.set_num_threads(1)
    recipe = Recipe(seed=seed)
    engine = recipe.engine()
    trainer = recipe.trainer(engine)
    learner = begin_learner(
        engine.model,
        sync="hilo" if way.compressor else "full",
        optimizer=get_optimizer("adamw", {"lr": lr}),
        compressor=get_compressor(way.compressor or "dense", {"budget": f"rank {way.share}"} if way.compressor else {}),
        log=f"memory:learning-{way.name}-{seed}",
        seed=seed,
    )

    def collect(version: int) -> list[RolloutBatch]:
        return [engine.generate(version, batch, state_digest=learner.digest) for batch in range(recipe.batches)]

    every = math.gcd(*versions)
    history = list(lockstep(learner, trainer, collect, versions=max(versions), evaluate_every=every, problems=problems))
    found = {progress.version: progress.evaluation for progress in history if progress.evaluation is not None}
    sizes = [progress.step.record_bytes for progress in history if progress.step is not None]
    return {
        "way": way.name,
        "seed": seed,
        "record_bytes_median": int(statistics.median(sizes)),
        "ratio": statistics.median(sizes) / learner.plan.adapter_bytes,
        "pass_at_1": {version: found[version].pass_at_1 for version in (0, *versions)},
        "pass_at_4": {version: found[version].pass_at_4 for version in (0, *versions)},
    }


def run_learning(
    ways: Sequence[Way] = WAYS,
    seeds: Sequence[int] = (0, 1, 2),
    versions: Sequence[int] = (20, 40),
    lr: float = 2e-3,
    problems: int = 200,
    processes: int = 2,
    progress: Callable[[str], None] = lambda message: None,
) -> list[dict[str, Any]]:
    """Runs every way on every seed, one thread per run.

    Args:
        ways: what to compare.
        seeds: of prompts, noise and initial adapter; the same for every way.
        versions: policy versions to evaluate at.
        lr: of AdamW.
        problems: held-out problems per evaluation.
        processes: runs at a time.
        progress: called with a line of text after every run.
    """
    jobs = [(way, seed) for seed in seeds for way in ways]
    results = []
    # Spawned, not forked: the log's storage library has threads.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(_learn_once, way, seed, versions, lr, problems) for way, seed in jobs]
        for number, future in enumerate(as_completed(futures), start=1):
            result = future.result()
            results.append(result)
            last = result["pass_at_1"][max(versions)]
            progress(f"{number}/{len(jobs)} {result['way']}, seed {result['seed']}: pass@1 {last:.3f}")
    order = {way.name: index for index, way in enumerate(ways)}
    return sorted(results, key=lambda result: (order[result["way"]], result["seed"]))


def learning_table(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over seeds with their standard errors, one row per way.

    A row has `way, seeds, record_bytes, ratio` and, per version, `pass_at_1, pass_at_1_error, pass_at_4,
    pass_at_4_error` as dictionaries. The standard error is that of the mean over seeds, None for one seed.
    """
    rows = []
    for name in dict.fromkeys(run["way"] for run in runs):
        mine = [run for run in runs if run["way"] == name]
        row: dict[str, Any] = {
            "way": name,
            "seeds": [run["seed"] for run in mine],
            "record_bytes": int(statistics.median(run["record_bytes_median"] for run in mine)),
            "ratio": statistics.median(run["ratio"] for run in mine),
        }
        for metric in ("pass_at_1", "pass_at_4"):
            at = {version: [run[metric][version] for run in mine] for version in mine[0][metric]}
            row[metric] = {version: statistics.mean(values) for version, values in at.items()}
            row[f"{metric}_error"] = {
                version: statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
                for version, values in at.items()
            }
        rows.append(row)
    return rows
