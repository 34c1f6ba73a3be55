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


def begin(folder, rank: int = 4, seed: int = 1, versions: int = 4, **options) -> hilo.Learner:
    torch.manual_seed(3)
    model = get_peft_model(Tiny(), LoraConfig(r=rank, target_modules=["first", "second"]))
    learner = hilo.Learner(
        model,
        optimizer=hilo.AdamW(lr=1e-2),
        compressor=hilo.Spar(budget=900),
        log=f"file:{folder}",
        seed=seed,
        **options,
    )
    for step in range(versions):
        model(torch.ones(3, 10) * (step + 1)).square().sum().backward()
        learner.step()
        learner.close()
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


def test_a_log_without_its_first_records_is_verified_from_its_oldest_snapshot(run_command, tmp_path):
    learner = begin(tmp_path / "a", versions=9, anchor_interval=2, keep_recent=2)
    code, out, _ = run_command("verify", tmp_path / "a")
    assert code == 0
    assert "records 1 to 4 have been removed; verified from the snapshot of version 6 on" in out
    assert "3 records replayed, 3 digests checked, all equal" in out
    code, out, _ = run_command("verify", tmp_path / "a", "--json")
    result = json.loads(out)
    assert (result["first_version"], result["versions"], result["digest_checks"]) == (6, 9, 3)
    assert result["final_digest"] == learner.digest.hex()


def test_a_damaged_snapshot_is_passed_over_and_without_any_nothing_is_verified(run_command, tmp_path):
    begin(tmp_path / "a", versions=9, anchor_interval=2, keep_recent=2)
    names = sorted(path for path in (tmp_path / "a" / "snapshots").iterdir() if path.name.startswith("0"))
    whole = names[0].read_bytes()
    names[0].write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    code, out, _ = run_command("verify", tmp_path / "a")
    assert code == 0 and "verified from the snapshot of version 8 on" in out
    code, out, _ = run_command("inspect", tmp_path / "a")
    assert code == 0 and "damaged body of a manifest" in out
    for blob in (tmp_path / "a" / "blobs").iterdir():
        blob.unlink()
    code, _, err = run_command("verify", tmp_path / "a")
    assert code == 2 and err.splitlines()[-1].startswith("Truncated: file:")
    assert "no snapshot can be verified in their place" in err and "chunk 1 of 1 of snapshot 8" in err


def test_a_flipped_byte_behind_a_snapshot_is_found(run_command, tmp_path):
    begin(tmp_path / "a", versions=9, anchor_interval=2, keep_recent=2)
    path = tmp_path / "a" / "steps" / f"{8:020d}"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    code, _, err = run_command("verify", tmp_path / "a")
    assert code == 1 and err.splitlines()[-1].startswith("MalformedRecord: record 8 of file:")


def test_inspect_shows_snapshots_and_what_was_removed(run_command, tmp_path):
    begin(tmp_path / "a", versions=9, anchor_interval=2, keep_recent=2)
    code, out, _ = run_command("inspect", tmp_path / "a")
    assert code == 0 and "snapshot     version 6: digest" in out
    assert "records 1 to 4 have been removed: retention keeps what the oldest snapshot needs" in out
    code, out, _ = run_command("inspect", tmp_path / "a", "--json")
    shown = json.loads(out)
    assert [row["version"] for row in shown["snapshots"]] == [6, 8]
    assert shown["snapshots"][1]["digest"] == shown["records"][-2]["digest"]
    assert (shown["oldest_record"], shown["missing"]) == (5, [])
    assert [row["version"] for row in shown["records"]] == [5, 6, 7, 8, 9]
    code, _, err = run_command("inspect", tmp_path / "a", "--version", 3)
    assert code == 2 and "has no version 3: records 1 to 4 have been removed by retention" in err


@pytest.mark.parametrize("missing", [[2], [1, 3]])
def test_inspect_says_what_is_missing_in_a_log_with_a_hole(run_command, tmp_path, missing):
    begin(tmp_path / "a")
    for version in missing:
        (tmp_path / "a" / "steps" / f"{version:020d}").unlink()
    code, out, err = run_command("inspect", tmp_path / "a", "--json")
    shown = json.loads(out)
    assert code == 1 and shown["missing"] == missing and shown["records"][-1]["version"] == 4
    assert f"MalformedRecord: record {missing[0]} of file:" in err and "the log has a hole" in err
    code, _, err = run_command("inspect", tmp_path / "a", "--version", missing[0])
    assert code == 1 and "although record 4 is there: the log has a hole" in err


def test_a_ticket_opens_the_run_it_was_made_for_and_no_other(run_command, tmp_path):
    begin(tmp_path / "a")
    code, text, _ = run_command("ticket", tmp_path / "a", "--out", tmp_path / "a.ticket")
    assert code == 0 and (tmp_path / "a.ticket").read_text() == text
    code, _, err = run_command("ticket", tmp_path / "a", "--out", tmp_path / "none" / "a.ticket")
    assert code == 2 and "cannot write the ticket to" in err and "No such file or directory" in err
    for ticket in (text.strip(), tmp_path / "a.ticket"):
        code, out, _ = run_command("verify", ticket)
        assert code == 0 and "4 records replayed" in out
    code, _, err = run_command("verify", text.strip()[:-3])
    assert code == 2 and err.splitlines()[-1].startswith("BadTicket: mistyped or incomplete join ticket")
    shutil.rmtree(tmp_path / "a")
    begin(tmp_path / "a", seed=2)
    code, _, err = run_command("work", tmp_path / "a.ticket", "--wait", 0)
    assert code == 2 and "RunMismatch" in err and "the join ticket is for" in err
