"""Does the compressed policy learn as well? The demo's task, every way of shipping, several seeds.

Learner and rollout engine share one process here: what a worker generates is a function of the policy's
bits, the seed and the batch, so the curves are those of the same run with worker processes.

Every finished run is a line of a journal, so a bench that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from hilosync.baselines import begin_learner
from hilosync.compress import get_compressor
from hilosync.optim import get_optimizer
from hilosync.rl.loop import make_versions
from hilosync.rl.recipe import Recipe
from hilosync.rl.rollouts import RolloutBatch

__all__ = ["WAYS", "Way", "learning_table", "read_journal", "run_learning"]


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
    history = list(
        make_versions(learner, trainer, collect, versions=max(versions), evaluate_every=every, problems=problems)
    )
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
    journal: Path,
    ways: Sequence[Way] = WAYS,
    seeds: Sequence[int] = (0, 1, 2),
    versions: Sequence[int] = (20, 40),
    lr: float = 2e-3,
    problems: int = 200,
    processes: int = 2,
    progress: Callable[[int, int, str], None] = lambda finished, total, message: None,
) -> list[dict[str, Any]]:
    """Runs every way on every seed, one thread per run.

    Args:
        journal: file that gets a line per finished run; runs that it holds with the same settings are
            taken from it. Its folder is made.
        ways: what to compare.
        seeds: of prompts, noise and initial adapter; the same for every way.
        versions: policy versions to evaluate at.
        lr: of AdamW.
        problems: held-out problems per evaluation.
        processes: runs at a time.
        progress: called with the number of finished runs, of all runs, and a line of text: once at the
            start and after every run.

    Returns:
        A dictionary per run, by way and then by seed.
    """
    jobs = [(way, seed) for seed in seeds for way in ways]
    settings = {"versions": list(versions), "lr": lr, "problems": problems}
    keys = {(way.name, seed): _key(way, seed, settings) for way, seed in jobs}
    known = read_journal(journal)
    results = {job: known[key] for job, key in keys.items() if key in known}
    progress(len(results), len(jobs), f"{len(results)} of {len(jobs)} runs are in {journal}")
    journal.parent.mkdir(parents=True, exist_ok=True)
    # Spawned, not forked: the log's storage library has threads.
    with journal.open("a") as lines, ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        futures = {
            pool.submit(_learn_once, way, seed, versions, lr, problems): (way.name, seed)
            for way, seed in jobs
            if (way.name, seed) not in results
        }
        for future in as_completed(futures):
            name, seed = futures[future]
            results[name, seed] = result = future.result()
            lines.write(json.dumps({"key": keys[name, seed], "run": result}) + "\n")
            lines.flush()
            last = result["pass_at_1"][max(versions)]
            progress(len(results), len(jobs), f"{name}, seed {seed}: pass@1 {last:.3f} at version {max(versions)}")
    return [results[way.name, seed] for way in ways for seed in seeds]


def read_journal(journal: Path) -> dict[str, dict[str, Any]]:
    """The finished runs of a journal by their settings; empty if there is no such file.

    A line that was not written to its end, as an interruption leaves it, is passed over.
    """
    found: dict[str, dict[str, Any]] = {}
    for line in journal.read_text().splitlines() if journal.exists() else []:
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        run = entry["run"]
        for metric in ("pass_at_1", "pass_at_4"):  # JSON has no integer keys
            run[metric] = {int(version): value for version, value in run[metric].items()}
        found[entry["key"]] = run
    return found


def _key(way: Way, seed: int, settings: dict[str, Any]) -> str:
    return json.dumps({**asdict(way), **settings, **Recipe(seed=seed).to_json()}, sort_keys=True)


def learning_table(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over seeds with their standard errors, one row per way.

    A row has `way, seeds, record_bytes, ratio` and, per version, `pass_at_1, pass_at_1_error, pass_at_4,
    pass_at_4_error` as dictionaries. The standard error is that of the mean over seeds, None for one seed.
    `gain, gain_error` are pass@1 minus that of the first way, over the seeds that both have: runs of one seed
    share prompts, noise and held-out draws, so their difference is less noisy than either.
    """
    rows = []
    first = {run["seed"]: run["pass_at_1"] for run in runs if run["way"] == runs[0]["way"]}
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
            row[metric], row[f"{metric}_error"] = _means(at)
        shared = [run for run in mine if run["seed"] in first]
        at = {
            version: [run["pass_at_1"][version] - first[run["seed"]][version] for run in shared]
            for version in mine[0]["pass_at_1"]
        }
        row["gain"], row["gain_error"] = _means(at)
        rows.append(row)
    return rows


def _means(at: dict[int, list[float]]) -> tuple[dict[int, float | None], dict[int, float | None]]:
    """Means and their standard errors by version; None where there are too few values."""
    means = {version: statistics.mean(values) if values else None for version, values in at.items()}
    errors = {
        version: statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
        for version, values in at.items()
    }
    return means, errors
