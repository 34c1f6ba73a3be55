"""The README's Python runs as it is printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from hilosync.rl.policy import locate_model

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.slow
def test_the_python_of_the_readme_runs_and_both_sides_agree(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    assert len(blocks) == 2
    tokens = torch.arange(16).view(2, 8)
    names: dict = {"batches": [{"input_ids": tokens, "labels": tokens}] * 3}
    # No model hub is reached: the hub id becomes the tiny model inside the package, nothing else changes.
    learner_side = blocks[0].replace("Qwen/Qwen3-0.6B", locate_model("tiny-kk-student"))
    exec(compile(learner_side, str(README), "exec"), names)
    exec(compile(blocks[1], str(README), "exec"), names)
    learner, replica = names["learner"], names["replica"]
    assert replica.version == learner.version == 3
    assert replica.digest == learner.digest
    assert (tmp_path / "adapters" / "mine-v3" / "adapter_model.safetensors").is_file()


def test_the_readme_points_only_to_files_that_exist():
    for target in re.findall(r"\]\(([^)#]+)\)", README.read_text()):
        if not target.startswith("http"):
            assert (README.parent / target).exists(), target
