"""`steps.jsonl`: what every version cost and kept, one JSON object per line."""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType

from hilosync.plan import AdapterPlan
from hilosync.rl.loop import Progress

__all__ = ["History", "metrics_of"]


class History:
    """Appends a line per version; a context manager. Without a path it keeps nothing."""

    def __init__(self, path: Path | None, plan: AdapterPlan, after: int = 0):
        """Opens the file anew; with the lines of versions up to `after` that it holds, where a run goes on."""
        self._plan = plan
        kept = _lines_until(path, after) if path is not None and after else []
        self._stream = path.open("w") if path is not None else None
        if self._stream is not None:
            self._stream.writelines(kept)

    def __enter__(self) -> History:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stream is not None:
            self._stream.close()

    def add(self, progress: Progress) -> None:
        """Writes a version's line: its metrics, the orders that made it, ‖G‖² and ‖E‖² by tensor."""
        step, backward = progress.step, progress.backward
        if self._stream is None or step is None or backward is None:
            return
        energies = zip(self._plan.blocks, step.gradient_energies.tolist(), step.residual_energies.tolist(), strict=True)
        line = {
            "version": progress.version,
            **metrics_of(progress, self._plan),
            "rollout/orders": backward.orders,
            "energies": {block.name: [gradient, residual] for block, gradient, residual in energies},
        }
        self._stream.write(json.dumps(line) + "\n")
        self._stream.flush()


def metrics_of(progress: Progress, plan: AdapterPlan) -> dict[str, float]:
    """What a version cost and kept, by the names that trackers are given."""
    step, backward, evaluation = progress.step, progress.backward, progress.evaluation
    metrics: dict[str, float] = {}
    if step is not None:
        metrics |= {
            "sync/bytes": step.record_bytes,
            "sync/ratio_to_adapter": step.record_bytes / plan.adapter_bytes,
            "sync/encode_s": step.encode_seconds,
            "sync/publish_s": step.publish_seconds,
            "spar/residual_norm": step.residual_ratio,
        }
    if backward is not None:
        metrics |= {
            "rollout/reward_mean": backward.reward,
            "rollout/staleness_mean": backward.staleness_mean,
            "rollout/staleness_max": backward.staleness_max,
            "rollout/ratio_mean": backward.ratio_mean,
            "loss": backward.loss,
        }
    if evaluation is not None:
        metrics |= {"pass@1": evaluation.pass_at_1, "pass@4": evaluation.pass_at_4}
    return metrics


def _lines_until(path: Path, version: int) -> list[str]:
    """The whole lines of a history up to a version; a line that its writer did not finish is left out."""
    kept = []
    for line in path.read_text("utf-8").splitlines(keepends=True) if path.exists() else []:
        try:
            if json.loads(line)["version"] <= version and line.endswith("\n"):
                kept.append(line)
        except (ValueError, LookupError, TypeError):
            continue
    return kept
