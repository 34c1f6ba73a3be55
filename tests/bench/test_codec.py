"""The comparison of compressors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hilosync.bench.capture import capture_to
from hilosync.bench.codec import _measure, run_codec, shannon_bits, synthetic_gradient
from hilosync.bench.powersgd import PowerSGDHook
from hilosync.compress import SparRD
from hilosync.errors import ConfigurationError
from hilosync.plan import AdapterPlan, Block

PLAN = AdapterPlan(tuple(Block(f"w{i}", 16, 96) for i in range(6)) + tuple(Block(f"x{i}", 48, 16) for i in range(6)))


def test_every_compressor_and_budget_gives_one_row_of_the_stated_figures(tmp_path):
    keep = capture_to(tmp_path / "capture", PLAN)
    for step in range(4):
        keep(step + 1, synthetic_gradient(PLAN, seed=step))
    lines = []
    rows = run_codec(tmp_path / "capture", None, budgets=("5%", "20%"), progress=lines.append)
    assert [(row["compressor"], row["budget"]) for row in rows] == [
        *((name, budget) for name in ("spar", "spar_rd", "powersgd", "topk") for budget in ("5%", "20%")),
        ("dense", "100%"),
    ]
    assert len(lines) == len(rows)
    for row in rows:
        assert row["source"] == "captured"
        assert row["compressor"] == "dense" or row["ratio"] <= float(row["budget"].rstrip("%")) / 100
        assert 0 <= row["residual_energy"] < 1
        assert row["bound_ratio"] is None or row["bound_ratio"] > 1
        assert row["encode_ms"] > 0 and row["decode_ms"] > 0 and row["floor_ms"] > 0 and row["powersgd_hook_ms"] > 0
        assert 0 <= row["coder_ms"] < row["decode_ms"] and (row["coder_ms"] > 0) == (row["compressor"] == "spar_rd")
    energy = {(row["compressor"], row["budget"]): row["residual_energy"] for row in rows}
    assert energy["spar_rd", "20%"] < energy["spar", "20%"] < energy["spar", "5%"]


def test_the_bound_is_the_textbook_one_for_equal_variances_and_falls_with_distortion():
    plan = AdapterPlan((Block("w", 4, 100),))
    energies = [np.full(4, 100.0)]  # 400 variables of variance 1
    assert shannon_bits(plan, energies, 400 * 0.25) == pytest.approx(400, rel=1e-6)  # ½·log₂(4) each
    assert shannon_bits(plan, energies, 400 * 0.5) == pytest.approx(200, rel=1e-6)
    assert shannon_bits(plan, energies, 400) == pytest.approx(0, abs=1e-3)


def test_a_synthetic_gradient_is_reproducible_and_noise_adds_its_share_of_energy():
    quiet, noisy = synthetic_gradient(PLAN), synthetic_gradient(PLAN, 0.5)
    assert torch.equal(quiet, synthetic_gradient(PLAN))
    energy = [torch.linalg.matrix_norm(view).item() ** 2 for view in PLAN.views(noisy)]
    assert 1.1 < np.exp(np.mean(np.log(energy))) < 2.5


def test_the_hook_s_arithmetic_finds_the_leading_component_and_keeps_the_rest():
    gradient = synthetic_gradient(PLAN)
    hook, received = PowerSGDHook(PLAN), torch.zeros(PLAN.size)
    for _ in range(30):
        bucket = gradient.clone()
        hook.step(bucket)
        received += bucket
    # With error feedback the mean of what is sent approaches the gradient.
    assert (received / 30 - gradient).norm() < 0.25 * gradient.norm()
    assert all(torch.linalg.matrix_rank(view) <= 1 for view in PLAN.views(bucket))


def test_a_payload_that_holds_nothing_has_no_bound_to_compare_with():
    plan = AdapterPlan((Block("long", 8, 20_000), Block("short", 1, 1)))
    gradient = torch.randn(plan.size, generator=torch.Generator().manual_seed(0))
    gradient[-1] = 0
    row = _measure(plan, SparRD(budget=200), [gradient] * 2, feedback=False)
    assert row["bound_ratio"] is None and row["residual_energy"] > 0.99


def test_budgets_that_no_compressor_can_meet_are_one_error(tmp_path):
    capture_to(tmp_path / "capture", PLAN)(1, synthetic_gradient(PLAN))
    with pytest.raises(ConfigurationError, match="expected a budget that some compressor can meet, got 10 for spar:"):
        run_codec(tmp_path / "capture", None, compressors=["spar"], budgets=["10"])
