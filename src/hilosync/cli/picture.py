"""Pictures of learning: held-out accuracy against versions, and against the bytes that were shipped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hilosync.cli.session import Summary
from hilosync.errors import ConfigurationError

__all__ = ["draw_codec", "draw_learning", "draw_ways"]


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
    pyplot = _pyplot()
    path.parent.mkdir(parents=True, exist_ok=True)
    versions = [version for version in rows[0]["pass_at_1"] if version > 0]
    figure, panels = pyplot.subplots(
        1, len(versions), figsize=(5.2 * len(versions), 4.4), layout="constrained", sharey=True, squeeze=False
    )
    for axes, version in zip(panels[0], versions, strict=True):
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
    panels[0][0].set(ylabel="held-out pass@1, mean ± standard error")
    panels[0][-1].legend(fontsize=8)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def draw_codec(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Writes `path` (png): residual energy by bytes, one panel per source of gradients, and Shannon's bound.

    Args:
        rows: as `hilosync.bench.codec.run_codec` gives them.
        path: the file to write; its folder is made.
    """
    pyplot = _pyplot()
    path.parent.mkdir(parents=True, exist_ok=True)
    sources = list(dict.fromkeys(row["source"] for row in rows))
    figure, panels = pyplot.subplots(
        1, len(sources), figsize=(5.2 * len(sources), 4.4), layout="constrained", squeeze=False
    )
    for axes, source in zip(panels[0], sources, strict=True):
        mine = [row for row in rows if row["source"] == source and row["residual_energy"] > 0]
        for name in dict.fromkeys(row["compressor"] for row in mine):
            points = sorted((100 * row["ratio"], row["residual_energy"]) for row in mine if row["compressor"] == name)
            axes.plot(*zip(*points, strict=True), "o-", label=name, markersize=4)
        bound = sorted(
            (100 * row["ratio"] / row["bound_ratio"], row["residual_energy"]) for row in mine if row["bound_ratio"]
        )
        if bound:
            axes.plot(*zip(*bound, strict=True), "k:", label="Shannon bound, bases known")
        axes.set(xscale="log", yscale="log", xlabel="bytes, % of the bf16 adapter", title=source)
        axes.grid(alpha=0.3)
    panels[0][0].set(ylabel="residual energy ‖G′ − Ĝ‖² ⁄ ‖G′‖²")
    panels[0][0].legend(fontsize=8)
    figure.savefig(path, dpi=130)
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
