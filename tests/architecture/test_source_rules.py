"""Rules that hold in every module: nothing unpickles, nothing grows past a page or six."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import hilosync

SOURCE = Path(hilosync.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))
LONGEST = 350
UNPICKLERS = {"_pickle", "cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}


def pickles_in(text: str) -> list[str]:
    """Each way in which a module could execute what it reads, as `line: reason`."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            found += [f"{node.lineno}: imports {name}" for name in names if set(name.split(".")) & UNPICKLERS]
            if isinstance(node, ast.ImportFrom) and node.module == "torch":
                found += [
                    f"{node.lineno}: imports torch.{alias.name}"
                    for alias in node.names
                    if alias.name in ("load", "save")
                ]
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in ("torch.load", "torch.save"):
            found.append(f"{node.lineno}: {ast.unparse(node)}")
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
            found.append(f"{node.value.lineno}: allow_pickle={ast.unparse(node.value)}")
    return found


def test_nothing_is_pickled():
    found = [f"{path.relative_to(SOURCE)}:{why}" for path in MODULES for why in pickles_in(path.read_text("utf-8"))]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "import pickle\n",
        "import torch, pickle as p\n",
        "def f():\n    from pickle import loads\n",
        "import torch\ntorch.load('x', weights_only=True)\n",
        "from torch import load\n",
        "numpy.load('x', allow_pickle=True)\n",
        "import cloudpickle\n",
    ],
)
def test_a_planted_pickle_is_found(text):
    assert len(pickles_in(text)) == 1


def test_every_module_is_short_enough_to_be_read():
    lengths = {path.relative_to(SOURCE).as_posix(): len(path.read_text("utf-8").splitlines()) for path in MODULES}
    found = [f"{module}: {lines} lines, at most {LONGEST}" for module, lines in lengths.items() if lines > LONGEST]
    assert not found, "\n" + "\n".join(found)


def test_annotations_are_never_evaluated_at_import():
    found = []
    for path in MODULES:
        text = path.read_text("utf-8")
        annotated = ast.FunctionDef | ast.ClassDef | ast.AnnAssign
        if any(isinstance(node, annotated) for node in ast.walk(ast.parse(text))):
            found += [] if "from __future__ import annotations\n" in text else [path.relative_to(SOURCE).as_posix()]
    assert found == []
