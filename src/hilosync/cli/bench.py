"""`hilo bench`: measurements, each one JSON object on standard output with --json."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from hilosync.cli.numbers import Number
from hilosync.cli.tables import table_console

__all__ = ["codec", "command", "learning", "network", "recovery", "replay"]

_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
_threads_option = click.option(
    "--threads",
    default=1,
    show_default=True,
    type=click.IntRange(1, os.cpu_count() or 1),
    help="CPU threads, no more than this machine has processors.",
)


@click.group("bench")
def command() -> None:
    """Measure. Progress and tables go to standard error, one JSON object to standard output with --json."""


def _progress(message: str) -> None:
    click.echo(message, err=True)


def _finish(result: dict[str, Any], as_json: bool, *tables: Table) -> None:
    console = table_console(stderr=True)
    for table in tables:
        console.print(table)
    if as_json:
        click.echo(json.dumps(result, allow_nan=False))


def _table(title: str, headings: list[str], rows: list[list[str]]) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold", show_edge=False)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*row)
    return table


@command.command("replay")
@click.option("--model", default="qwen3-1.7b", show_default=True, help="Whose shapes.")
@click.option("--rank", default=64, show_default=True, type=click.IntRange(1), help="LoRA rank.")
@click.option("--optimizer", default="adamw", show_default=True, help="Registered optimizer.")
@_threads_option
@click.option("--ranks-per-block", default=1, show_default=True, type=click.IntRange(1), help="Rank of every Ĝ block.")
@click.option("--repeats", default=9, show_default=True, type=click.IntRange(1), help="Timed rounds.")
@_JSON
def replay(model: str, rank: int, optimizer: str, threads: int, ranks_per_block: int, repeats: int, as_json: bool):
    """Time one optimizer step of a replica at full size against memory and torch."""
    from hilosync.bench.replay import run_replay

    result = run_replay(model, rank, optimizer, threads, ranks_per_block, repeats, _progress)
    rows = [
        [key, f"{value:,.3f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)]
        for key, value in result.items()
        if value is not None
    ]
    title = "replay: times are medians over rounds, ratios medians of the ratios within a round"
    _finish(result, as_json, _table(title, ["figure", "value"], rows))


@command.command("learning")
@click.option("--seeds", default=3, show_default=True, type=click.IntRange(1), help="Number of seeds.")
@click.option("--versions", default="20,40", show_default=True, help="Policy versions to evaluate at.")
@click.option("--lr", default=2e-3, show_default=True, help="Learning rate of AdamW.")
@click.option("--problems", default=200, show_default=True, type=click.IntRange(1), help="Held-out problems.")
@click.option("--ways", help="Only the ways whose names contain one of these, separated by commas.")
@click.option("--processes", default=2, show_default=True, type=click.IntRange(1), help="Runs at a time.")
@click.option("--out", default="runs/learning", show_default=True, type=click.Path(path_type=Path), help="Folder.")
@_JSON
def learning(
    seeds: int, versions: str, lr: float, problems: int, ways: str | None, processes: int, out: Path, as_json: bool
) -> None:
    """Compare learning curves of the demo's task, every way of shipping on every seed.

    Every finished run is added to OUT/runs.jsonl: an interrupted bench goes on when it is started again.
    The picture is OUT/learning.png.
    """
    from hilosync.bench.learning import WAYS, learning_table, run_learning
    from hilosync.cli.bar import counting_bar
    from hilosync.cli.picture import draw_ways

    at = _versions(versions)
    wanted = [way for way in WAYS if ways is None or any(part.strip() in way.name for part in ways.split(","))]
    with counting_bar("runs") as progress:
        runs = run_learning(out / "runs.jsonl", wanted, range(seeds), at, lr, problems, processes, progress)
    rows = learning_table(runs)
    draw_ways(rows, out / "learning.png")
    headings = ["way", "record bytes", "of adapter", *(f"pass@1 at {v}" for v in (0, *at)), f"pass@4 at {at[-1]}"]
    headings += [f"pass@1 at {version} − {rows[0]['way']}" for version in at]
    table = _table(
        f"mean and standard error over {seeds} seeds",
        headings,
        [
            [
                row["way"],
                f"{row['record_bytes']:,}",
                f"{100 * row['ratio']:.2f}%",
                *(_with_error(row, "pass_at_1", version) for version in (0, *at)),
                _with_error(row, "pass_at_4", at[-1]),
                *(_with_error(row, "gain", version, "+") for version in at),
            ]
            for row in rows
        ],
    )
    _finish({"rows": rows, "runs": runs, "picture": str(out / "learning.png")}, as_json, table)


def _versions(text: str) -> tuple[int, ...]:
    try:
        versions = tuple(int(part) for part in text.split(","))
    except ValueError:
        versions = ()
    if not versions or min(versions) < 1:
        raise click.BadParameter(f"expected policy versions such as 20,40, got {text!r}", param_hint="--versions")
    return versions


def _with_error(row: dict[str, Any], metric: str, version: int, sign: str = "") -> str:
    mean, error = row[metric][version], row[f"{metric}_error"][version]
    if mean is None:
        return ""
    return f"{mean:{sign}.3f}" + ("" if error is None else f" ± {error:.3f}")


@command.command("codec")
@click.option("--capture", type=click.Path(path_type=Path), help="Folder of `hilo demo --capture-gradients`.")
@click.option("--model", default="qwen3-1.7b", show_default=True, help="Whose shapes; 'none' for captured only.")
@click.option("--compressors", help="Registered names, separated by commas; by default all that ship with HiLo.")
@click.option("--budgets", help="Budgets, separated by commas; by default 0.2% to 3.2% of the adapter.")
@click.option("--steps", default=40, show_default=True, type=click.IntRange(1), help="Captured gradients at most.")
@_threads_option
@click.option("--out", default="runs/codec.png", show_default=True, type=click.Path(path_type=Path), help="Picture.")
@_JSON
def codec(
    capture: Path | None,
    model: str,
    compressors: str | None,
    budgets: str | None,
    steps: int,
    threads: int,
    out: Path,
    as_json: bool,
) -> None:
    """Compare compressors at equal bytes, on captured and on full-size synthetic gradients."""
    import torch

    from hilosync.bench.codec import BUDGETS, COMPRESSORS, run_codec
    from hilosync.cli.picture import draw_codec

    if capture is None and model == "none":
        raise click.UsageError("nothing to measure: give --capture DIR, or a --model")
    torch.set_num_threads(threads)
    rows = run_codec(
        capture,
        None if model == "none" else model,
        _names(compressors) or COMPRESSORS,
        _names(budgets) or BUDGETS,
        steps,
        _progress,
    )
    draw_codec(rows, out)
    headings = ["source", "compressor", "budget", "bytes", "of adapter", "residual", "of bound"]
    headings += ["encode ms", "decode ms", "of it coder", "floor ms", "PowerSGD hook ms", "extra MB"]
    table = _table(
        "codecs",
        headings,
        [
            [
                row["source"],
                row["compressor"],
                row["budget"],
                f"{row['bytes']:,}",
                f"{100 * row['ratio']:.2f}%",
                f"{row['residual_energy']:.4f}",
                "" if row["bound_ratio"] is None else f"{row['bound_ratio']:.2f}",
                f"{row['encode_ms']:.1f}",
                f"{row['decode_ms']:.1f}",
                f"{row['coder_ms']:.1f}",
                f"{row['floor_ms']:.1f}",
                f"{row['powersgd_hook_ms']:.1f}",
                "" if row["peak_extra_mb"] is None else f"{row['peak_extra_mb']:.0f}",
            ]
            for row in rows
        ],
    )
    _finish({"rows": rows, "picture": str(out)}, as_json, table)


def _names(text: str | None) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()] if text else []


@command.command("recovery")
@click.option("--versions", default=18, show_default=True, type=click.IntRange(12), help="Policy versions of a run.")
@click.option("--problems", default=200, show_default=True, type=click.IntRange(1), help="Held-out problems.")
@click.option("--out", default="runs/recovery", show_default=True, type=click.Path(path_type=Path), help="New folder.")
@_JSON
def recovery(versions: int, problems: int, out: Path, as_json: bool) -> None:
    """Kill learner and worker at every named point, and compare with an undisturbed run."""
    from hilosync.bench.recovery import run_recovery
    from hilosync.errors import ConfigurationError

    if out.exists():
        raise ConfigurationError(f"{out} exists: choose another folder with --out, or remove it")
    result = run_recovery(out, versions, problems, progress=_progress)
    rows = [[key, f"{value:,.3f}" if isinstance(value, float) else str(value)] for key, value in result.items()]
    _finish(result, as_json, _table("recovery", ["figure", "value"], rows))


@command.command("network")
@click.option("--tree", is_flag=True, help="Instead: one adapter and one snapshot through a tree of relays.")
@click.option("--logs", help="Kinds of logs, separated by commas; by default file,nats,s3,relay.")
@click.option("--networks", help="Separated by commas; by default loopback,link,lossy.")
@click.option("--workers", default=8, show_default=True, type=click.IntRange(1), help="Processes that read.")
@click.option("--records", default=40, show_default=True, type=click.IntRange(1), help="Records of each series.")
@click.option("--adapters", default=2, show_default=True, type=click.IntRange(1), help="Adapters of each series.")
@click.option("--pause", default=2.0, show_default=True, type=Number(0, 3600), help="Seconds between them.")
@click.option("--partition", default=20.0, show_default=True, type=Number(0, 3600), help="Seconds without a link.")
@click.option("--snapshot-mb", default=84.0, show_default=True, type=Number(0, 1e5), help="Of --tree, 0 for none.")
@click.option("--mbit", default=62.5, show_default=True, help="Rate of a link, Mbit/s.")
@click.option("--delay-ms", default=40.0, show_default=True, help="One way.")
@click.option("--jitter-ms", default=10.0, show_default=True, help="Of the lossy link, around the delay.")
@click.option("--loss", default=0.01, show_default=True, help="Share of packets, of the lossy link.")
@click.option("--model", default="qwen3-1.7b", show_default=True, help="Whose shapes.")
@click.option("--rank", default=64, show_default=True, type=click.IntRange(1), help="LoRA rank.")
@click.option("--budget", default="1.6%", show_default=True, help="Of a record.")
@click.option(
    "--out",
    default="runs/network.png",
    show_default=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Picture.",
)
@_JSON
def network(
    tree: bool,
    logs: str | None,
    networks: str | None,
    workers: int,
    records: int,
    adapters: int,
    pause: float,
    partition: float,
    snapshot_mb: float,
    mbit: float,
    delay_ms: float,
    jitter_ms: float,
    loss: float,
    model: str,
    rank: int,
    budget: str,
    out: Path,
    as_json: bool,
) -> None:
    """Time records and whole adapters from a learner to workers, over each kind of log and each network.

    Learner, workers and servers are processes on this machine. Shaped links need root on Linux; without them the
    loopback is measured, and the rest is named. A record that is lost, repeated, out of order or changed ends the
    command with code 1.
    """
    from hilosync.bench.links import Link
    from hilosync.bench.network import model_sizes
    from hilosync.cli.network import measure_network, measure_tree

    sizes, link = model_sizes(model, rank, budget), Link(mbit, delay_ms, jitter_ms, loss)
    out.parent.mkdir(parents=True, exist_ok=True)  # a folder that cannot be made is better known before than after
    if tree:
        result, table = measure_tree(sizes, link, workers, round(1e6 * snapshot_mb), out)
    else:
        result, table = measure_network(
            sizes, link, _names(logs), _names(networks), workers, records, adapters, pause, partition, out
        )
    _finish(result | {"picture": str(out)}, as_json, _table(*table))
    if not result["nothing_lost"]:
        raise SystemExit(1)
