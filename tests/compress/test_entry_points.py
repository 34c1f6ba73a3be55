"""A package from elsewhere registers a compressor."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "sign_compressor"

PROGRAM = """
import torch
from hilosync.compress import budget_bytes, compressor_names, get_compressor
from hilosync.plan import AdapterPlan, Block

plan = AdapterPlan((Block("a", 4, 9), Block("b", 7, 4)))
compressor = get_compressor("sign", {"budget": "50%"})
gradient = torch.randn(plan.size)
payload, _ = compressor.encode(plan, compressor.init(plan), gradient, budget_bytes(compressor.budget, plan))
for view, block in zip(plan.views(gradient), compressor.decode(plan, payload), strict=True):
    torch.testing.assert_close(block.values, view.sign() * view.abs().mean())
print(*compressor_names())
"""


@pytest.mark.slow
def test_the_example_package_is_installed_and_its_compressor_is_found_by_name(tmp_path):
    package = shutil.copytree(EXAMPLE, tmp_path / "package")  # builds leave files beside the source
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run(
        [*install, "--no-index", "--target", str(tmp_path / "site"), str(package)],
        check=True,
        timeout=200,
        capture_output=True,
    )
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={"PYTHONPATH": str(tmp_path / "site"), "PATH": ""},
        check=True,
        timeout=200,
        capture_output=True,
        text=True,
    )
    assert {"sign", "spar", "spar_rd"} <= set(ran.stdout.split())
