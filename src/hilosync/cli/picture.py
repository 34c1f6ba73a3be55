"""The picture of a demo: held-out accuracy against versions and against the bytes that were shipped."""

from __future__ import annotations

from pathlib import Path

from hilosync.cli.session import Summary

__all__ = ["draw_learning"]


def draw_learning(summaries: list[Summary], path: Path) -> None:
    """Writes `path` (png): pass@1 and pass@4 by version on the left, pass@1 by megabytes on the right."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

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
