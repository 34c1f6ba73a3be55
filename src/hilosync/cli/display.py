"""What a run looks like while it runs: a live table on a terminal, a line per version elsewhere."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hilosync.cli.session import Summary
from hilosync.rl.loop import Progress
from hilosync.runtime import Roll

__all__ = ["Display", "summary_table"]

_ROWS = 16


class Display:
    """Shows progress on standard error; a context manager."""

    def __init__(self, title: str, adapter_bytes: int, versions: int, console: Console | None = None):
        self.console = console or Console(stderr=True)
        self._title = title
        self._adapter_bytes = adapter_bytes
        self._versions = versions
        self._history: list[Progress] = []
        self._roll: Roll | None = None
        self._live = Live(console=self.console, refresh_per_second=4) if self.console.is_terminal else None

    def __enter__(self) -> Display:
        self.console.print(self._title, highlight=False, soft_wrap=True)
        if self._live is not None:
            self._live.start()
        else:
            self.console.print(_line(_HEADINGS), highlight=False, soft_wrap=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, progress: Progress, roll: Roll) -> None:
        """A version was made."""
        self._history.append(progress)
        self._roll = roll
        if self._live is not None:
            self._live.update(self._picture())
        else:
            self.console.print(_line(self._cells(progress)), highlight=False, soft_wrap=True)

    def watch(self, roll: Roll) -> None:
        """Time passes."""
        self._roll = roll
        if self._live is not None:
            self._live.update(self._picture())

    def _picture(self) -> Group:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for heading in _HEADINGS:
            table.add_column(heading, justify="right")
        for progress in self._history[-_ROWS:]:
            table.add_row(*self._cells(progress))
        workers = Table(box=None, pad_edge=False, header_style="bold")
        for heading in ("worker", "version", "digest", "checks", "mismatches", "apply ms", "heard"):
            workers.add_column(heading, justify="left" if heading in ("worker", "digest", "heard") else "right")
        for notice in self._roll.workers() if self._roll else []:
            quiet = self._roll.silence(notice.sender) if self._roll else 0.0
            heard = "now" if quiet < 3 else Text(f"{quiet:.0f} s ago", style="bold red")
            workers.add_row(
                notice.sender,
                str(notice.version),
                notice.digest[:12],
                str(notice.checks),
                str(notice.mismatches),
                f"{1e3 * notice.apply_seconds:.1f}",
                notice.state if notice.state in ("finished", "failed") else heard,
            )
        done = self._history[-1].version if self._history else 0
        return Group(table, Text(f"version {done} of {self._versions}", style="dim"), workers)

    def _cells(self, progress: Progress) -> list[str]:
        cells = [str(progress.version)]
        if progress.backward is None or progress.step is None:
            cells += ["", "", "", "", ""]
        else:
            cells += [
                f"{progress.backward.loss:.3f}",
                f"{progress.backward.reward:.2f}",
                f"{progress.step.record_bytes:,}",
                f"{100 * progress.step.record_bytes / self._adapter_bytes:.2f}%",
                f"{1e3 * progress.step.encode_seconds:.0f}",
            ]
        evaluation = progress.evaluation
        cells += [f"{evaluation.pass_at_1:.3f}", f"{evaluation.pass_at_4:.3f}"] if evaluation else ["", ""]
        notices = self._roll.workers() if self._roll else []
        cells.append(" ".join(f"{notice.sender}:{notice.version}/{notice.digest[:6]}" for notice in notices))
        return cells


_HEADINGS = [
    "version",
    "loss",
    "reward",
    "record B",
    "of adapter",
    "encode ms",
    "pass@1",
    "pass@4",
    "workers, as last heard: version/digest",
]
_WIDTHS = [7, 7, 7, 10, 10, 9, 7, 7, 0]


def _line(cells: list[str]) -> str:
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, _WIDTHS, strict=True)).rstrip()


def summary_table(summaries: list[Summary]) -> Table:
    """The closing table, one column per run."""
    table = Table(header_style="bold", show_edge=False)
    table.add_column("")
    for summary in summaries:
        table.add_column("whole adapter" if summary.sync == "full" else f"HiLo ({summary.compressor})", justify="right")
    rows = {
        "versions": lambda s: str(s.versions),
        "held-out pass@1": lambda s: f"{s.pass_at_1['start']:.3f} → {s.pass_at_1['end']:.3f}",
        "held-out pass@4": lambda s: f"{s.pass_at_4['start']:.3f} → {s.pass_at_4['end']:.3f}",
        "record, median bytes": lambda s: f"{s.record_bytes_median:,}",
        "record, largest bytes": lambda s: f"{s.record_bytes_max:,}",
        "budget, bytes": lambda s: f"{s.budget:,}" if s.budget_given != "none" else "none",
        "bf16 adapter, bytes": lambda s: f"{s.adapter_bytes:,}",
        "record / adapter": lambda s: f"{100 * s.ratio:.2f}%",
        "digest checks": lambda s: f"{s.digest_checks} by {s.workers} workers",
        "digests that differed": lambda s: str(s.digest_mismatches),
        "staleness, mean (max)": lambda s: f"{s.staleness['mean']:.2f} ({s.staleness['max']:.0f})",
        "encode, median ms": lambda s: f"{s.encode_ms_median:.1f}",
        "apply, median ms": lambda s: f"{s.apply_ms_median:.1f}",
        "seconds": lambda s: f"{s.seconds:.0f}",
        "final digest": lambda s: s.final_digest[:16],
    }
    for label, value in rows.items():
        table.add_row(label, *(value(summary) for summary in summaries))
    return table
