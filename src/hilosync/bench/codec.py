"""Compares compressors at equal bytes: residual energy, distance from the Shannon bound, time, memory.

Two sources of gradients. *Captured*: those of a real run, with error feedback carried from step to
step. *Synthetic*: full-size shapes with σ_i ∝ 1/i in random bases, Gaussian coefficients, block
energies spread over a few octaves; *synthetic-noisy* adds white noise of half that energy. Synthetic
gradients come without feedback, since random bases have nothing to carry over.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import torch

from hilosync.bench.capture import read_capture
from hilosync.bench.powersgd import hook_milliseconds
from hilosync.bench.shapes import adapter_plan
from hilosync.compress import Compressor, budget_bytes, correct, encode_corrected, get_compressor, retain
from hilosync.compress.entropy import SymbolReader
from hilosync.compress.spectra import spectra
from hilosync.errors import BudgetTooSmall, ConfigurationError
from hilosync.plan import AdapterPlan

__all__ = ["BUDGETS", "COMPRESSORS", "run_codec", "shannon_bits", "synthetic_gradient"]

BUDGETS = ("0.2%", "0.4%", "0.8%", "1.6%", "3.2%")
"""Fractions of the bf16 adapter that are compared."""

COMPRESSORS = ("spar", "spar_rd", "powersgd", "topk", "dense")
"""Compressors that are compared; `dense` has one size, its budget does not apply."""

_NOISE_ENERGY = {"synthetic": 0.0, "synthetic-noisy": 0.5}


def run_codec(
    capture: str | Path | None = None,
    model: str | None = "qwen3-1.7b",
    compressors: Sequence[str] = COMPRESSORS,
    budgets: Sequence[str] = BUDGETS,
    steps: int = 40,
    progress: Callable[[str], None] = lambda message: None,
) -> list[dict[str, Any]]:
    """One row per source, compressor and budget.

    Args:
        capture: folder of captured gradients; None to leave them out.
        model: whose shapes the synthetic gradients have; None to leave them out.
        compressors: registered names.
        budgets: as `budget_bytes` reads them; one that is too small for a compressor gives no row.
        steps: captured gradients at most.
        progress: called with a line per row.

    Raises:
        ConfigurationError: no compressor can meet any budget.

    Returns:
        Rows of `compressor, source, budget, bytes` (median payload), `ratio` (of the bf16 adapter's
        bytes), `residual_energy` (‖G' − Ĝ‖²/‖G'‖², mean over the steps after the first quarter),
        `bound_ratio` (bits over `shannon_bits` at that distortion; None for a distortion of nearly
        none or all), `encode_ms` (encode and retain), `decode_ms`, `coder_ms` (the part of `decode_ms`
        within the range decoder), `floor_ms` (reading G and E and writing E once), all medians of wall
        time, `powersgd_hook_ms` (what PyTorch's rank-1 hook computes for this source's first gradient,
        to compare `encode_ms` with), and `peak_extra_mb` of encoding (None where the system does not tell).
    """
    rows: list[dict[str, Any]] = []

    def measure(plan: AdapterPlan, source: str, gradients: list[torch.Tensor], feedback: bool):
        hook = hook_milliseconds(plan, gradients[0])
        for name in compressors:
            for budget in budgets if name != "dense" else ["100%"]:
                compressor = get_compressor(name) if name == "dense" else get_compressor(name, {"budget": budget})
                try:
                    row = _measure(plan, compressor, gradients, feedback)
                except BudgetTooSmall as error:
                    progress(f"{source} {name} {budget}: {error}")
                    continue
                rows.append({"compressor": name, "source": source, "budget": budget, **row, "powersgd_hook_ms": hook})
                progress(
                    f"{source:16} {name:10} {budget:>5} {row['bytes']:>11,} bytes, residual energy "
                    f"{row['residual_energy']:.4f}, encode {row['encode_ms']:.0f} ms"
                )

    if capture is not None:
        plan, found = read_capture(capture)
        kept = [gradient for gradient, _ in zip(found, range(steps), strict=False)]
        measure(plan, "captured", kept, feedback=True)
    if model is not None:
        plan = adapter_plan(model)
        for source, noise in _NOISE_ENERGY.items():
            gradient = synthetic_gradient(plan, noise)
            # The same gradient again, so that encoders with a state are measured with a warm one.
            measure(plan, source, [gradient] * 5, feedback=False)
    if not rows:
        raise ConfigurationError(
            f"expected a budget that some compressor can meet, got {', '.join(budgets)} for {', '.join(compressors)}: "
            "raise the budget"
        )
    return rows


def synthetic_gradient(plan: AdapterPlan, noise: float = 0.0, seed: int = 0) -> torch.Tensor:
    """A flat fp32 gradient with a known kind of spectrum in every block.

    Args:
        plan: the shapes.
        noise: energy of white noise relative to that of the structured part.
        seed: of the random bases, coefficients and block energies.
    """
    generator = torch.Generator().manual_seed(seed)
    flat = torch.empty(plan.size)
    for block, view in zip(plan.blocks, plan.views(flat), strict=True):
        r, n = sorted((block.rows, block.columns))
        sigma = 1.0 / torch.arange(1, r + 1)
        basis = torch.linalg.qr(torch.randn(r, r, generator=generator)).Q * (sigma / sigma.norm())
        matrix = basis @ torch.randn(r, n, generator=generator).div_(math.sqrt(n))
        if noise:
            matrix += torch.randn(r, n, generator=generator).mul_(math.sqrt(noise / (r * n)))
        matrix *= torch.randn(1, generator=generator).mul_(0.5).exp()
        view.copy_(matrix if block.rows <= block.columns else matrix.T)
    return flat


def shannon_bits(plan: AdapterPlan, energies: Sequence[np.ndarray], distortion: float) -> float:
    """Fewest bits for this distortion, by reverse water-filling.

    Every component is taken as n Gaussian variables of variance σ²/n, the bases as known:
    R = Σ n/2·log₂(σ²/(n·θ)) over components above the water level θ, D = Σ n·min(σ²/n, θ).

    Args:
        plan: the shapes, whose long sides are the n.
        energies: σ² of each block.
        distortion: ‖G − Ĝ‖².
    """
    n = np.concatenate(
        [np.full(len(found), max(b.rows, b.columns)) for b, found in zip(plan.blocks, energies, strict=True)]
    )
    variance = np.concatenate(energies) / n
    low, high = 0.0, float(variance.max(initial=0.0))
    for _ in range(200):
        level = (low + high) / 2
        low, high = (level, high) if (n * np.minimum(variance, level)).sum() < distortion else (low, level)
    above = variance > high
    return float((n[above] / 2 * np.log2(variance[above] / high)).sum()) if high > 0 else math.inf


def _measure(
    plan: AdapterPlan, compressor: Compressor, gradients: Iterable[torch.Tensor], feedback: bool
) -> dict[str, Any]:
    budget = budget_bytes(compressor.budget, plan)
    state, residual = compressor.init(plan), torch.zeros(plan.size)
    sizes, shares, bounds, encode, decode, coder, floor, extra = [], [], [], [], [], [], [], []
    for gradient in gradients:
        if not feedback:
            residual.zero_()
        floor.append(_seconds(lambda gradient=gradient, residual=residual: residual.add_(gradient)))
        residual.sub_(gradient)
        with _PeakExtra() as peak:
            started = time.perf_counter()
            corrected = correct(plan, gradient, residual)
            payload, state = encode_corrected(compressor, plan, state, corrected, budget)
            encoded = time.perf_counter()
        energies = [spectrum.energies for spectrum in spectra(plan, corrected)]
        resumed = time.perf_counter()
        with _coder_seconds() as spent:
            decoded = compressor.decode(plan, payload)
        read = time.perf_counter()
        left = float(retain(plan, corrected, decoded)[1].sum())
        finished = time.perf_counter()
        total = float(sum(found.sum() for found in energies))
        sizes.append(len(payload))
        shares.append(left / total)
        if left > 1e-4 * total and (fewest := shannon_bits(plan, energies, left)) > 0:
            bounds.append(8 * len(payload) / fewest)
        encode.append(encoded - started + finished - read)
        decode.append(read - resumed)
        coder.append(sum(spent))
        extra.append(peak.megabytes)
    skipped = len(shares) // 4
    known = [megabytes for megabytes in extra if megabytes is not None]
    return {
        "bytes": int(median(sizes)),
        "ratio": median(sizes) / plan.adapter_bytes,
        "residual_energy": mean(shares[skipped:]),
        "bound_ratio": mean(bounds[skipped:]) if len(bounds) > skipped else None,
        "encode_ms": 1e3 * median(encode),
        "decode_ms": 1e3 * median(decode),
        "coder_ms": 1e3 * median(coder),
        "floor_ms": 1e3 * median(floor),
        "peak_extra_mb": median(known) if known else None,
    }


@contextmanager
def _coder_seconds() -> Iterator[list[float]]:
    """Seconds of each call of the range decoder."""
    spent: list[float] = []
    read = SymbolReader.symbols

    def timed(self: SymbolReader, model: Any, count: int) -> np.ndarray:
        started = time.perf_counter()
        try:
            return read(self, model, count)
        finally:
            spent.append(time.perf_counter() - started)

    SymbolReader.symbols = timed
    try:
        yield spent
    finally:
        SymbolReader.symbols = read


def _seconds(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


class _PeakExtra:
    """Megabytes by which resident memory rose at most, where Linux tells."""

    megabytes: float | None = None

    def __enter__(self) -> _PeakExtra:
        self._before = None
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
            self._before = dict(_memory())["VmRSS"]
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            self.megabytes = max(0, dict(_memory())["VmHWM"] - self._before) / 1024


def _memory() -> Iterator[tuple[str, int]]:
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in ("VmHWM", "VmRSS"):
            yield name, int(rest.split()[0])
