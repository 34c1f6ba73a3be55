"""The lock serves every machine: it pins all that is asked for, and names no build of one kind of machine."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import hilosync

REPOSITORY = Path(hilosync.__file__).parent.parent.parent
LINES = [line for line in (REPOSITORY / "requirements.lock").read_text("utf-8").splitlines() if line[0] != "#"]


def test_every_line_pins_one_public_release():
    assert [line for line in LINES if not re.fullmatch(r"[a-z0-9._-]+==[0-9][0-9a-z.]*", line)] == []


def test_no_line_names_a_cuda_library():
    assert [line for line in LINES if line.startswith(("cuda-", "nvidia-", "triton"))] == []


def test_the_lock_satisfies_what_the_project_asks_for():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    asked = [Requirement(line) for line in [*project["dependencies"], *(line for extra in extras for line in extra)]]
    pins = dict(line.split("==") for line in LINES)
    asked = [requirement for requirement in asked if requirement.name != project["name"]]
    missing = [str(requirement) for requirement in asked if canonicalize_name(requirement.name) not in pins]
    assert missing == [], "run `make lock`"
    outside = [str(r) for r in asked if not r.specifier.contains(pins[canonicalize_name(r.name)])]
    assert outside == [], "run `make lock`"
