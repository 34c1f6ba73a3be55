"""The options that `hilo demo` and `hilo learn` share, and the settings they become."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from hilosync.cli.numbers import seconds_option
from hilosync.compress import Compressor, get_compressor
from hilosync.optim import Optimizer, get_optimizer
from hilosync.rl.recipe import Recipe
from hilosync.runtime import PACES, Limits

__all__ = ["OUTAGE_OPTION", "RunOptions", "default_learning_rate", "run_options"]


@dataclass(frozen=True)
class RunOptions:
    """What the learner's side of a run is asked to do.

    Attributes:
        recipe: models, task and sizes.
        optimizer: a registered optimizer's name.
        lr: its learning rate.
        schedule: ``constant``, or ``linear`` or ``cosine`` down to zero at the last version.
        compressor: a registered compressor's name.
        budget: bytes of a record: ``"1.6%"``, ``"rank 1"`` or a number.
        sync: ``hilo`` ships compressed gradients, ``full`` the whole adapter.
        versions: policy versions to make.
        evaluate_every: versions between held-out evaluations.
        problems: held-out problems of an evaluation.
        max_grad_norm: clips the gradient; None to leave it.
        limits: how long learner and workers wait for each other.
        outage: seconds for which the log may be out of reach.
        threads: of the learner's process.
        capture: folder for the gradients of every step, or None.
        anchor_interval: versions between two snapshots; None to write none.
        keep_recent: snapshots that stay, with the records after the oldest of them; None to keep everything.
        sign: file of the private key that signs every record, or None.
        track: where every version's metrics go; see `hilosync.metrics`.
    """

    recipe: Recipe
    optimizer: str
    lr: float
    schedule: str
    compressor: str
    budget: str
    sync: str
    versions: int
    evaluate_every: int
    problems: int
    max_grad_norm: float | None
    limits: Limits
    outage: float
    threads: int
    capture: str | None
    anchor_interval: int | None
    keep_recent: int | None
    sign: str | None
    track: tuple[str, ...]

    def make_optimizer(self) -> Optimizer:
        """The optimizer that was asked for.

        Raises:
            ConfigurationError: there is none of this name, or the rate is no rate.
        """
        return get_optimizer(self.optimizer, {"lr": self.lr})

    def make_compressor(self) -> Compressor:
        """The compressor that was asked for; `dense` has no budget.

        Raises:
            ConfigurationError: there is none of this name.
        """
        return get_compressor(self.compressor, {} if self.compressor == "dense" else {"budget": self.budget})


_DEFAULT_LEARNING_RATES = {"adamw": 2e-3, "lion": 3e-4, "sgdm": 0.3, "muon": 1e-2}
"""Of the tiny task, by optimizer."""

OUTAGE_OPTION = seconds_option(
    "--outage", 300.0, "Seconds for which the log may be out of reach: the process waits, and goes on by itself."
)

_SHARED = [
    click.option("--versions", default=48, show_default=True, type=click.IntRange(1), help="Policy versions to make."),
    click.option("--compressor", default="spar_rd", show_default=True, help="Registered compressor."),
    click.option(
        "--budget",
        default="rank 1",
        show_default=True,
        help="Bytes of a record, header included: '1.6%' of the bf16 adapter, 'rank 1' (of every factor) or a number.",
    ),
    click.option("--optimizer", default="adamw", show_default=True, help="Registered optimizer."),
    click.option("--lr", type=float, help="Learning rate; by default one that suits the optimizer and the tiny task."),
    click.option(
        "--schedule",
        default="constant",
        show_default=True,
        type=click.Choice(["constant", "linear", "cosine"]),
        help="Of the learning rate, down to zero at the last version; workers need not know.",
    ),
    click.option(
        "--sync",
        default="hilo",
        show_default=True,
        type=click.Choice(["hilo", "full"]),
        help="Ship compressed gradients, or the whole adapter at every step.",
    ),
    click.option("--max-grad-norm", type=float, help="Clip the gradient to this norm before error feedback."),
    click.option("--evaluate-every", default=8, show_default=True, type=click.IntRange(1), help="In versions."),
    click.option("--problems", default=200, show_default=True, type=click.IntRange(1), help="Held-out problems."),
    click.option("--student", default=Recipe().student, show_default=True, help="Tiny model, local path or hub id."),
    click.option("--teacher", default=Recipe().teacher, show_default=True, help="Tiny model, local path or hub id."),
    click.option("--task", default=Recipe().task, show_default=True, help="knights-compact (tiny models) or knights."),
    click.option("--people", default=3, show_default=True, type=click.IntRange(2, 8), help="People per problem."),
    click.option("--rank", default=64, show_default=True, type=click.IntRange(1), help="LoRA rank."),
    click.option("--alpha", default=64, show_default=True, type=click.IntRange(1), help="LoRA alpha."),
    click.option("--batches", default=2, show_default=True, type=click.IntRange(1), help="Orders per version."),
    click.option("--prompts", default=8, show_default=True, type=click.IntRange(1), help="Prompts per order."),
    click.option("--samples", default=4, show_default=True, type=click.IntRange(1), help="Completions per prompt."),
    click.option(
        "--mode",
        default="lockstep",
        show_default=True,
        type=click.Choice(PACES),
        help="Generate and train in turns, overlap them in a fixed order, or use whatever arrives first.",
    ),
    click.option(
        "--max-staleness", type=int, help="Versions that rollouts may be behind; by default 1, in lockstep 0."
    ),
    click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Of prompts, noise and adapter."),
    click.option("--device", default="cpu", show_default=True, help="Where learner and workers compute."),
    click.option(
        "--threads",
        default=1,
        show_default=True,
        type=click.IntRange(1),
        help="Threads of the learner; a run repeats bit for bit only with the same number.",
    ),
    seconds_option("--patience", 60.0, "Seconds without a worker before giving up."),
    OUTAGE_OPTION,
    click.option("--anchor-interval", type=click.IntRange(1), help="Write a snapshot every so many versions."),
    click.option(
        "--keep-recent",
        type=click.IntRange(1),
        help="Keep so many snapshots and the records after the oldest of them; by default the whole run.",
    ),
    click.option(
        "--sign",
        type=click.Path(dir_okay=False),
        help="Sign every record with the private key in this file, which is made if there is none.",
    ),
    click.option("--capture-gradients", "capture", type=click.Path(file_okay=False), help="Save all gradients."),
    click.option(
        "--track",
        multiple=True,
        help="Send metrics to tensorboard:FOLDER, trackio:PROJECT, wandb:PROJECT or prometheus:PORT; may be repeated.",
    ),
]

_RECIPE = tuple(name for name in Recipe.__struct_fields__ if name not in ("objective", "temperature"))


def default_learning_rate(optimizer: str) -> float:
    """A rate that suits the optimizer and the tiny task."""
    return _DEFAULT_LEARNING_RATES.get(optimizer, 1e-3)


def run_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the shared options; the command receives one `options: RunOptions` and its own arguments."""

    def call(**given: Any) -> Any:
        if given["max_staleness"] is None:
            given["max_staleness"] = int(given["mode"] != "lockstep")
        recipe = Recipe(**{name: given.pop(name) for name in _RECIPE})
        lr = given.pop("lr")
        optimizer = given["optimizer"]
        options = RunOptions(
            recipe=recipe,
            lr=default_learning_rate(optimizer) if lr is None else lr,
            limits=Limits(patience=given.pop("patience")),
            **{name: given.pop(name) for name in _OWN},
        )
        return function(options=options, **given)

    call.__doc__ = function.__doc__
    call.__name__ = function.__name__
    decorated: Any = call
    for option in reversed(_SHARED):
        decorated = option(decorated)
    return decorated


_OWN = tuple(name for name in RunOptions.__dataclass_fields__ if name not in ("recipe", "lr", "limits"))
