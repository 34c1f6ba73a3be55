"""Imports point downwards only: the table below is the architecture, and this test enforces it."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import hilosync

PACKAGE = "hilosync"
SOURCE = Path(hilosync.__file__).parent
REPOSITORY = SOURCE.parent.parent

FOUNDATION = {"errors", "plan", "arithmetic"}
CORE = FOUNDATION | {"compress", "optim", "wire", "protocol"}
RUN = CORE | {"log", "runtime"}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "plan": {"errors"},
    "arithmetic": {"errors", "plan"},
    "compress": FOUNDATION,
    "optim": FOUNDATION,
    "wire": FOUNDATION,
    "protocol": CORE - {"protocol"},
    "log": {"errors"},
    "metrics": {"errors"},
    "runtime": RUN - {"runtime"},
    PACKAGE: RUN,  # `import hilosync as hilo`: what a training script needs, and nothing of the tasks
    "relay": FOUNDATION | {"wire", "log"},
    "rl": RUN - {"log"},
    "baselines": RUN | {"rl"},
    "sim": RUN | {"rl"},
    "federated": RUN | {"rl"},
    "integrations": RUN | {"rl"},
    "bench": RUN | {"rl", "baselines", "sim", "federated", "integrations", "relay", PACKAGE},
    "cli": RUN | {"metrics", "rl", "baselines", "sim", "federated", "integrations", "relay", "bench", PACKAGE},
    "__main__": {"cli"},
}

WORLD = {
    "asyncio", "datetime", "io", "multiprocessing", "obstore", "os", "pathlib", "random", "secrets", "shutil",
    "signal", "socket", "subprocess", "tempfile", "threading", "time", "uuid",
}  # fmt: skip
"""Clock, files, network, processes and chance: what the state machines are handed as arguments."""

MUST_NOT_USE: dict[str, set[str]] = {"wire": {"torch"}, "log": {"torch", "numpy"}, "protocol": WORLD}
"""Libraries that a package knows nothing of."""

EXEMPT = {("wire/tensors.py", "torch")}
"""The one module that turns wire sections into tensors and back."""

LAZY = {
    "constriction", "cryptography", "httpx2", "matplotlib", "moto", "nats", "nkeys", "peft", "reasoning_gym",
    "starlette", "transformers", "uvicorn", "werkzeug",
}  # fmt: skip
"""Heavy or optional libraries, imported inside the functions that use them."""


@dataclass(frozen=True)
class Imported:
    """One import statement: the dotted module, its line, and whether it runs when the file is imported."""

    module: str
    line: int
    at_load: bool


def imports_of(path: Path, root: Path) -> Iterator[Imported]:
    """Every import in a file, wherever it stands: in functions and under `if TYPE_CHECKING` too."""
    parts = (PACKAGE, *path.relative_to(root).with_suffix("").parts)
    package = parts[:-1]
    tree = ast.parse(path.read_text("utf-8"))
    deferred = {
        id(inner)
        for outer in ast.walk(tree)
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef)
        or (isinstance(outer, ast.If) and "TYPE_CHECKING" in ast.unparse(outer.test))
        for inner in ast.walk(outer)
    }
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            base = ".".join(part for part in (above, node.module) if part)
            # `from hilosync import wire` names a package only in its alias
            names = [f"{base}.{alias.name}" for alias in node.names] if base == PACKAGE else [base]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("import_module", "__import__"):
            names = [arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant)]
        for name in names:
            yield Imported(name, getattr(node, "lineno", 0), id(node) not in deferred)


def layer_of(module: str, root: Path) -> str:
    """The row of the table that a dotted module of this package belongs to."""
    parts = module.split(".")
    if len(parts) == 1:
        return PACKAGE
    is_part = (root / parts[1]).is_dir() or (root / f"{parts[1]}.py").is_file()
    return parts[1] if is_part or parts[1] in MAY_IMPORT else PACKAGE


def layer_of_file(path: Path, root: Path) -> str:
    first = path.relative_to(root).parts[0]
    return PACKAGE if first == "__init__.py" else first.removesuffix(".py")


def violations(root: Path) -> list[str]:
    """Each import under `root` that the tables forbid, as `file:line: reason`."""
    found = []
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root).as_posix()
        layer = layer_of_file(path, root)
        if layer not in MAY_IMPORT:
            found.append(f"{relative}:1: {layer} has no place in the table of layers")
            continue
        for imported in imports_of(path, root):
            where = f"{relative}:{imported.line}"
            top = imported.module.split(".")[0]
            if top == PACKAGE:
                target = layer_of(imported.module, root)
                if target != layer and target not in MAY_IMPORT[layer]:
                    found.append(f"{where}: {layer} imports {imported.module}, which lies above or beside it")
            elif top in MUST_NOT_USE.get(layer, ()) and (relative, top) not in EXEMPT:
                found.append(f"{where}: {layer} must know nothing of {top}")
            elif top in LAZY and imported.at_load:
                found.append(f"{where}: {top} is heavy or optional; import it inside the function that uses it")
    return found


def planted(root: Path, relative: str, text: str) -> list[str]:
    """What the walk finds in a tree that holds one file."""
    path = root / relative
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return violations(root)


def test_no_import_points_up():
    found = violations(SOURCE)
    assert not found, "\n" + "\n".join(found)


def test_the_table_of_layers_has_no_cycle():
    order = list(TopologicalSorter(MAY_IMPORT).static_order())
    assert set(order) == set(MAY_IMPORT)


@pytest.mark.parametrize(
    ("relative", "text"),
    [
        ("plan/adapter.py", "import hilosync.wire.record\n"),
        ("plan/adapter.py", "import hilosync\n"),
        ("plan/adapter.py", "from hilosync import wire\n"),
        ("plan/adapter.py", "from hilosync import AdamW\n"),
        ("compress/spar.py", "from hilosync.optim.base import Optimizer\n"),
        ("compress/spar.py", "from ..optim import base\n"),
        ("compress/spar.py", "from .. import optim\n"),
        ("compress/deep/spar.py", "from ...optim.base import Optimizer\n"),
        ("log/objects.py", "def open_log():\n    from hilosync.plan import AdapterPlan\n"),
        ("rl/trainer.py", "from hilosync.log import open_log\n"),
        ("wire/record.py", "if TYPE_CHECKING:\n    from hilosync.protocol import learner\n"),
        ("wire/record.py", "import torch.nn\n"),
        ("protocol/learner.py", "def now():\n    import time\n"),
        ("protocol/learner.py", "from pathlib import Path\n"),
        ("protocol/learner.py", "import importlib\nimportlib.import_module('hilosync.runtime.worker')\n"),
        ("plan/peft.py", "import peft\n"),
        ("errors.py", "from hilosync.plan import AdapterPlan\n"),
        ("__init__.py", "from hilosync.cli import main\n"),
        ("gossip/peers.py", "import math\n"),
    ],
)
def test_a_planted_violation_is_found(tmp_path, relative, text):
    assert len(planted(tmp_path, relative, text)) == 1


@pytest.mark.parametrize(
    ("relative", "text"),
    [
        ("compress/spar.py", "from .base import Compressor\nfrom hilosync.arithmetic import gradient\n"),
        ("compress/__init__.py", "from . import base\n"),
        ("compress/range.py", "def coder():\n    import constriction\n"),
        ("plan/peft.py", "if TYPE_CHECKING:\n    import peft\n"),
        ("wire/tensors.py", "import torch\n"),
        ("rl/trainer.py", "from hilosync.runtime import worker\n"),
        ("cli/main.py", "from hilosync import __version__\n"),
        ("__init__.py", "from .runtime.learner import Learner\n"),
    ],
)
def test_an_import_that_points_down_is_allowed(tmp_path, relative, text):
    assert planted(tmp_path, relative, text) == []


MODULES_OF = {"nats_py": "nats"}
"""Where a distribution has another name than what one imports of it."""


def test_every_library_that_is_imported_is_declared():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    requirements = project["dependencies"] + [
        line for extra in project["optional-dependencies"].values() for line in extra
    ]
    names = {re.split(r"[^\w-]", line)[0].replace("-", "_").lower() for line in requirements}
    declared = {MODULES_OF.get(name, name) for name in names}
    imported = {
        found.module.split(".")[0]: f"{path.relative_to(SOURCE)}:{found.line}"
        for path in sorted(SOURCE.rglob("*.py"))
        for found in imports_of(path, SOURCE)
    }
    undeclared = imported.keys() - declared - set(sys.stdlib_module_names) - {PACKAGE}
    assert not undeclared, {name: imported[name] for name in undeclared}
