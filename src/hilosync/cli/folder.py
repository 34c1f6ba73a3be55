"""Run folders: when one may be removed, and how.

Whoever mistypes `--out` must lose nothing, so a folder goes only if all that is in it was made by HiLo.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path

from hilosync.errors import ConfigurationError, HiLoError, LogError, LogNotFound
from hilosync.log import Log, open_log
from hilosync.runtime import Presence
from hilosync.wire import decode_genesis

__all__ = ["CHECKPOINTS", "LOG_ADDRESS", "check_replaceable", "clear", "remove_unbegun"]

LOG_ADDRESS = "log.url"
"""The file in a run's folder that says where its log is, if that is not in the folder."""

# The log's folders, and what the objects in them are called.
_FOLDERS = {
    "steps": r"\d{20}|oldest",
    "blobs": r"[0-9a-f]{64}",
    "snapshots": r"\d{20}|index|oldest",
    "orders": r"\d+-\d+-\d+",
    "claims": r"\d+-\d+-\d+",
    "rollouts": r"\d+-\d+-\d+",
    "notices": r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}",
    "staging": r"\d+-[0-9a-f]{16}",
}
# The folder in a run's folder in which each process has a folder of its own, and what it keeps there.
CHECKPOINTS = "checkpoints"
_CHECKPOINT = r"((learner|replica)\.safetensors|chunk-[0-9a-f]{64})(\.[0-9a-f]{16}\.partial)?"
_UNFINISHED = r"(#\d+)?"  # the store's mark on what a killed process was writing
_WORKER_LOG = r"worker-\d+\.log"
_FILES = rf"log\.url|summary\.json|steps\.jsonl|learning\.png|{_WORKER_LOG}"

_LISTENING = 2.5
"""Seconds in which a living learner's heartbeat, one a second, moves."""


def check_replaceable(folder: Path) -> None:
    """Whether a new run may take the folder's place: there is none, or an earlier run's that has ended.

    Raises:
        ConfigurationError: the folder is no run's, holds something else as well, is of importance to the
            system, or a learner is alive in it.
    """
    if folder.parts[:1] and folder.parts[0].startswith("~"):
        raise _refusal(folder, "begins with a ~ that the shell has not replaced")
    try:
        folder.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise _refusal(folder, f"cannot be used ({os.strerror(error.errno or 0)})") from error
    if folder.is_symlink():
        raise _refusal(folder, "is a symbolic link")
    if not folder.is_dir():
        raise _refusal(folder, "exists and is not a run of HiLo")
    if Path.cwd().is_relative_to(folder.resolve()):
        raise _refusal(folder, "is the current directory, or holds it")
    if folder.is_mount():
        raise _refusal(folder, "is a mounted file system")
    for entry in folder.iterdir():
        _check_entry(folder, entry)
    log = _log_in(folder)
    if log is not None and _has_living_learner(log):
        raise ConfigurationError(
            f"a learner is alive in {folder}: wait for it or stop it, or choose another folder with --out"
        )


def clear(folder: Path) -> None:
    """Removes an earlier run's folder, if there is one.

    Raises:
        ConfigurationError: as for `check_replaceable`; nothing was removed.
    """
    check_replaceable(folder)
    if folder.exists():
        shutil.rmtree(folder)


def remove_unbegun(root: Path) -> None:
    """Removes the empty folders of a log in which no run has begun; what holds anything stays."""
    if not (root / "steps").is_dir() or any((root / "steps").iterdir()):
        return
    for folder in (*(root / name for name in _FOLDERS), root):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def _check_entry(folder: Path, entry: Path) -> None:
    strange: Path | None = entry
    if not entry.is_symlink():
        if entry.is_file() and re.fullmatch(_FILES, entry.name):
            return
        if entry.is_dir() and entry.name in _FOLDERS:
            strange = _stranger(entry, f"({_FOLDERS[entry.name]}){_UNFINISHED}")
        elif entry.is_dir() and entry.name == CHECKPOINTS:
            processes = list(entry.iterdir())
            found = (p if p.is_symlink() or not p.is_dir() else _stranger(p, _CHECKPOINT) for p in processes)
            strange = next((stranger for stranger in found if stranger is not None), None)
    if strange is not None:
        raise _refusal(folder, f"is not a run of HiLo alone: it holds {strange.relative_to(folder)}")


def _stranger(folder: Path, pattern: str) -> Path | None:
    """Something in the folder that is no file of such a name, or None."""
    entries = folder.iterdir()
    return next((e for e in entries if e.is_symlink() or not e.is_file() or not re.fullmatch(pattern, e.name)), None)


def _log_in(folder: Path) -> Log | None:
    """The log of the run in the folder, or None if none has begun there, or its log is no longer reached."""
    if (folder / LOG_ADDRESS).is_file():
        return _log_at(folder)
    try:
        log = open_log(f"file:{folder.absolute()}")
        decode_genesis(log.steps.read(0) or b"")
        return log
    except LogNotFound:
        # A demo that failed before its run began leaves what its workers said beside an empty log.
        for entry in folder.iterdir():
            if any(entry.iterdir()) if entry.is_dir() else not re.fullmatch(_WORKER_LOG, entry.name):
                raise _refusal(
                    folder, f"is not a run of HiLo: no run has begun in it, and it holds {entry.name}"
                ) from None
        return None
    except HiLoError as error:
        raise _refusal(folder, f"is not a run of HiLo that can be read ({error})") from error


def _log_at(folder: Path) -> Log | None:
    with (folder / LOG_ADDRESS).open("rb") as file:
        address = file.read(1000).decode("utf-8", errors="replace")
    if re.fullmatch(r"(?!file:|memory:)[a-z0-9]+:[!-~]+", address) is None:
        raise _refusal(folder, f"is not a run of HiLo: its {LOG_ADDRESS} holds no address")
    try:
        return open_log(address)
    except LogError:
        return None


def _has_living_learner(log: Log) -> bool:
    presence = Presence(log.mailbox)
    before = presence.look().notice("learner")
    if before is None or before.state != "serving":
        return False
    deadline = time.monotonic() + _LISTENING
    while time.monotonic() < deadline:
        time.sleep(0.1)
        if presence.look().notice("learner") != before:
            return True
    return False


def _refusal(folder: Path, why: str) -> ConfigurationError:
    return ConfigurationError(f"{folder} {why}: choose another folder with --out")
