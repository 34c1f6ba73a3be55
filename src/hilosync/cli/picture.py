"""Pictures of learning: held-out accuracy against versions, and against the bytes that were shipped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hilosync.cli.session import Summary
from hilosync.errors import ConfigurationError

__all__ = ["draw_codec", "draw_learning", "draw_network", "draw_tree", "draw_ways"]


def draw_learning(summaries: list[Summary], path: Path) -> None:
    """Writes `path` (png): pass@1 and pass@4 by version on the left, pass@1 by megabytes on the right."""
    pyplot = _pyplot()
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for summary, colour in zip(summaries, ("#1f6feb", "#d29922"), strict=False):
        name = "whole adapter" if summary.sync == "full" else f"HiLo, {summary.compressor}"
        curve = summary.curve
        share = f"{100 * summary.ratio:.1f} % of the adapter per step" if summary.sync == "hilo" else "100 % per step"
        left.plot(curve.version, curve.pass_at_1, "o-", color=colour, label=f"{name}: pass@1")
        left.plot(curve.version, curve.pass_at_4, "s--", color=colour, alpha=0.6, label=f"{name}: pass@4")
        right.plot(curve.megabytes[1:], curve.pass_at_1[1:], "o-", color=colour, label=f"{name}: {share}")
    left.set(xlabel="policy version", ylabel="held-out problems solved", ylim=(0, 1), title="Learning")
    right.set(
        xlabel="megabytes shipped to each worker", ylabel="held-out pass@1", ylim=(0, 1), xscale="log", title="Bytes"
    )
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8, loc="lower right")
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def draw_ways(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Writes `path` (png): mean pass@1 with standard errors by bytes per version, one panel per version.

    Args:
        rows: as `hilosync.bench.learning.learning_table` gives them.
        path: the file to write; its folder is made.
    """
    versions = [version for version in rows[0]["pass_at_1"] if version > 0]
    with _panels(path, len(versions), (5.2, 4.4), sharey=True) as panels:
        for axes, version in zip(panels, versions, strict=True):
            for row in rows:
                axes.errorbar(
                    100 * row["ratio"],
                    row["pass_at_1"][version],
                    yerr=row["pass_at_1_error"][version] or 0.0,
                    fmt="o",
                    capsize=3,
                    label=row["way"],
                )
            axes.set(xscale="log", xlabel="bytes per version, % of the bf16 adapter", title=f"version {version}")
            axes.grid(alpha=0.3)
        panels[0].set(ylabel="held-out pass@1, mean ± standard error")
        panels[-1].legend(fontsize=8)


def draw_codec(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Writes `path` (png): residual energy by bytes, one panel per source of gradients, and Shannon's bound.

    Args:
        rows: as `hilosync.bench.codec.run_codec` gives them.
        path: the file to write; its folder is made.
    """
    sources = list(dict.fromkeys(row["source"] for row in rows))
    with _panels(path, len(sources), (5.2, 4.4)) as panels:
        for axes, source in zip(panels, sources, strict=True):
            mine = [row for row in rows if row["source"] == source and row["residual_energy"] > 0]
            for name in dict.fromkeys(row["compressor"] for row in mine):
                points = sorted(
                    (100 * row["ratio"], row["residual_energy"]) for row in mine if row["compressor"] == name
                )
                axes.plot(*zip(*points, strict=True), "o-", label=name, markersize=4)
            bound = sorted(
                (100 * row["ratio"] / row["bound_ratio"], row["residual_energy"]) for row in mine if row["bound_ratio"]
            )
            if bound:
                axes.plot(*zip(*bound, strict=True), "k:", label="Shannon bound, bases known")
            axes.set(xscale="log", yscale="log", xlabel="bytes, % of the bf16 adapter", title=source)
            axes.grid(alpha=0.3)
        panels[0].set(ylabel="residual energy ‖G′ − Ĝ‖² ⁄ ‖G′‖²")
        panels[0].legend(fontsize=8)


def draw_network(result: dict[str, Any], path: Path) -> None:
    """Writes `path` (png): seconds of a record and of an adapter by kind of log, one panel per network.

    Args:
        result: as `hilosync.bench.network.run_network` gives it.
        path: the file to write; its folder is made.
    """
    networks = list(dict.fromkeys(row["network"] for row in result["rows"]))
    with _panels(path, len(networks), (4.4, 3.8), dpi=110, sharey=True) as panels:
        for axes, network in zip(panels, networks, strict=True):
            rows = [row for row in result["rows"] if row["network"] == network]
            for shift, what, colour in ((-0.2, "record", "#1f6feb"), (0.2, "adapter", "#d29922")):
                places = [number + shift for number in range(len(rows))]
                label = f"{what}, {result[f'{what}_bytes'] / 1e6:.1f} MB"
                bars = axes.bar(places, [row[f"{what}_s_median"] for row in rows], 0.38, color=colour, label=label)
                axes.bar_label(bars, fmt="%.3g", fontsize=8)
            axes.set(yscale="log", title=network, xticks=range(len(rows)), xticklabels=[row["log"] for row in rows])
            axes.grid(alpha=0.3, axis="y")
            axes.margins(y=0.15)
        panels[0].set(ylabel=f"seconds until all {result['workers']} workers have it")
        panels[0].legend(fontsize=8)


def draw_tree(result: dict[str, Any], path: Path) -> None:
    """Writes `path` (png): seconds of an adapter and of a snapshot by the way that they take.

    Args:
        result: as `hilosync.bench.tree.run_tree` gives it.
        path: the file to write; its folder is made.
    """
    shared = [what for what in ("adapter", "snapshot") if result["rows"][0][f"{what}_s"] is not None]
    with _panels(path, len(shared), (4.4, 2.6), dpi=110) as panels:
        for axes, what in zip(panels, shared, strict=True):
            rows = result["rows"][::-1]
            bars = axes.barh([row["way"] for row in rows], [row[f"{what}_s"] for row in rows], color="#1f6feb")
            axes.bar_label(bars, fmt="%.1f s", fontsize=8, padding=2)
            axes.set(
                title=f"{what}, {result[f'{what}_bytes'] / 1e6:.1f} MB", xlabel="seconds until the last worker has it"
            )
            axes.set_xlim(right=1.2 * max(row[f"{what}_s"] for row in rows))


@contextmanager
def _panels(
    path: Path, count: int, size: tuple[float, float], dpi: int = 130, sharey: bool = False
) -> Iterator[Sequence[Any]]:
    """Axes side by side, each of this size in inches, which are written to `path` in the end; its folder is made."""
    pyplot = _pyplot()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure, panels = pyplot.subplots(
        1, count, figsize=(size[0] * count, size[1]), layout="constrained", sharey=sharey, squeeze=False
    )
    yield panels[0]
    figure.savefig(path, dpi=dpi)
    pyplot.close(figure)


def _pyplot() -> Any:
    """matplotlib for a file, imported when a picture is drawn.

    Raises:
        ConfigurationError: it is not installed.
    """
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise ConfigurationError("pictures need matplotlib: pip install 'hilosync[demo]'") from error
    mpl.use("Agg")
    from matplotlib import pyplot

    return pyplot
