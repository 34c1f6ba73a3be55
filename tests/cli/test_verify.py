"""`hilo verify` and `hilo inspect` on logs that were tampered with."""

from __future__ import annotations

import json
import shutil
import sys

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

import hilosync as hilo
from hilosync.cli.main import main


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(10, 12), nn.Linear(12, 4)
        self.config = {"model_type": "toy"}

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


def begin(folder, rank: int = 4, seed: int = 1, versions: int = 4) -> hilo.Learner:
    torch.manual_seed(3)
    model = get_peft_model(Tiny(), LoraConfig(r=rank, target_modules=["first", "second"]))
    learner = hilo.Learner(
        model, optimizer=hilo.AdamW(lr=1e-2), compressor=hilo.Spar(budget=900), log=f"file:{folder}", seed=seed
    )
    for step in range(versions):
        model(torch.ones(3, 10) * (step + 1)).square().sum().backward()
        learner.step()
    return learner


@pytest.fixture
def run_command(monkeypatch, capsys):
    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["hilo", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return int(ended.value.code or 0), captured.out, captured.err.strip()

    return run


def record(folder, version: int):
    return sorted((folder / "steps").iterdir())[version]


def test_an_honest_log_verifies_and_reports_its_digest(run_command, tmp_path):
    learner = begin(tmp_path / "a")
    code, out, _ = run_command("verify", tmp_path / "a", "--json")
    assert code == 0
    result = json.loads(out)
    assert (result["versions"], result["digest_checks"], result["digest_mismatches"]) == (4, 4, 0)
    assert result["final_digest"] == learner.digest.hex()


@pytest.mark.parametrize("version", [1, 2, 4])
def test_a_flipped_byte_anywhere_is_refused_and_the_record_named(run_command, tmp_path, version):
    begin(tmp_path / "a")
    path = record(tmp_path / "a", version)
    whole = path.read_bytes()
    for position in (0, 9, 100, 186, 195, len(whole) - 1):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        code, _, err = run_command("verify", tmp_path / "a")
        assert code == 1
        assert err.splitlines()[-1].startswith(f"MalformedRecord: record {version} of file:"), position


def test_a_truncated_record_is_refused_and_named(run_command, tmp_path):
    begin(tmp_path / "a")
    path = record(tmp_path / "a", 3)
    path.write_bytes(path.read_bytes()[:-7])
    code, _, err = run_command("verify", tmp_path / "a")
    assert code == 1 and err.splitlines()[-1].startswith("MalformedRecord: record 3 of file:")


@pytest.mark.parametrize("missing", [[0], [1], [2], [3], [2, 3], [1, 2, 3], [0, 1, 2, 3]])
def test_a_hole_in_the_log_is_refused_and_the_missing_record_named(run_command, tmp_path, missing):
    begin(tmp_path / "a")
    for version in missing:
        (tmp_path / "a" / "steps" / f"{version:020d}").unlink()
    code, _, err = run_command("verify", tmp_path / "a")
    assert code == 1
    assert err.splitlines()[-1].startswith(f"MalformedRecord: record {missing[0]} of file:")
    assert "is missing, although record 4 is there: the log has a hole" in err


def test_a_log_that_lacks_its_last_records_or_has_none_verifies(run_command, tmp_path):
    begin(tmp_path / "a")
    record(tmp_path / "a", 4).unlink()
    code, out, _ = run_command("verify", tmp_path / "a")
    assert code == 0 and "3 records replayed" in out
    begin(tmp_path / "b", versions=0)
    code, out, _ = run_command("verify", tmp_path / "b")
    assert code == 0 and "0 records replayed" in out


@pytest.mark.parametrize("version", [0, 2, 4, 5])
def test_a_directory_in_a_records_place_is_one_clear_line(run_command, tmp_path, version):
    begin(tmp_path / "a")
    path = tmp_path / "a" / "steps" / f"{version:020d}"
    path.unlink(missing_ok=True)
    path.mkdir()
    for command in ("verify", "inspect"):
        code, _, err = run_command(command, tmp_path / "a")
        assert code == 2
        assert f"{path.name} is a directory: expected a file" in err.splitlines()[-1]


def test_a_record_of_another_run_or_plan_is_refused_with_both_named(run_command, tmp_path):
    mine = begin(tmp_path / "a").run.genesis.run
    for name, options in (("seed", {"seed": 2}), ("plan", {"rank": 3})):
        theirs = begin(tmp_path / name, **options).run.genesis.run
        shutil.copy(record(tmp_path / name, 2), record(tmp_path / "a", 2))
        code, _, err = run_command("verify", tmp_path / "a")
        assert code == 2
        assert f"RunMismatch: record 2 belongs to run {theirs}, this replica to {mine}" in err.replace("\n", " ")


def test_a_record_from_elsewhere_in_the_run_is_refused(run_command, tmp_path):
    begin(tmp_path / "a")
    shutil.copy(record(tmp_path / "a", 3), record(tmp_path / "a", 2))
    code, _, err = run_command("verify", tmp_path / "a")
    assert code == 1 and "ChainBroken: record 2 of file:" in err and "expected record 2, got 3" in err


def test_a_replica_with_another_optimizer_constant_is_caught_at_the_first_version_that_differs(
    run_command, tmp_path, monkeypatch
):
    begin(tmp_path / "a")
    honest = hilo.AdamW.step

    def other_constant(self, plan, state, gradient, scalars):
        changed = scalars.copy()
        changed[0, self.scalar_names.index("beta1")] = np.float32(0.91)
        return honest(self, plan, state, gradient, changed)

    monkeypatch.setattr(hilo.AdamW, "step", other_constant)
    code, _, err = run_command("verify", tmp_path / "a")
    assert code == 1
    assert err.splitlines()[-1].startswith("Diverged: version 2 diverged in ")
    assert "first.lora_B" in err  # A had no gradient in the first step, so its moments are still zero


def test_a_genesis_that_is_damaged_is_refused(run_command, tmp_path):
    begin(tmp_path / "a")
    path = record(tmp_path / "a", 0)
    path.write_bytes(path.read_bytes()[:-2] + b"!}")
    for command in ("verify", "inspect"):
        code, _, err = run_command(command, tmp_path / "a")
        assert code == 1 and "MalformedRecord" in err and "genesis" in err


def test_inspect_shows_what_each_record_holds(run_command, tmp_path):
    learner = begin(tmp_path / "a")
    code, out, _ = run_command("inspect", tmp_path / "a", "--json")
    assert code == 0
    shown = json.loads(out)
    assert shown["versions"] == 4 and shown["tensors"] == 4 and shown["budget"] == 900
    assert shown["records"][-1]["digest"] == learner.digest.hex()
    assert all(row["bytes"] <= 900 for row in shown["records"])
    code, out, _ = run_command("inspect", tmp_path / "a", "--version", 2)
    assert code == 0 and "first.lora_A" in out and "beta1" in out
