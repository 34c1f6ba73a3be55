"""`__all__` is the public surface of a module: complete, sorted, and nothing in it is missing."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

import hilosync

SOURCE = Path(hilosync.__file__).parent
MODULES = [path for path in sorted(SOURCE.rglob("*.py")) if path.name != "__main__.py"]


def listed_names(tree: ast.Module) -> list[str] | None:
    """The module's `__all__`, or None if it has none."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(ast.unparse(target) == "__all__" for target in node.targets):
            return list(ast.literal_eval(node.value))
    return None


def public_names(tree: ast.Module, is_package: bool) -> set[str]:
    """Names without an underscore that the module defines, type variables aside.

    A package also re-exports what it imports of HiLo and makes no use of itself.
    """
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign) and not ast.unparse(node.value).startswith("TypeVar("):
            targets = [name for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)]
            names.update(target.id for target in targets if isinstance(target.ctx, ast.Store))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        elif is_package and isinstance(node, ast.ImportFrom) and (node.level or node.module.startswith("hilosync.")):
            names.update({alias.asname or alias.name for alias in node.names} - used)
    return {name for name in names if not name.startswith("_")}


def in_order(names: list[str]) -> list[str]:
    """Constants, then classes, then functions, each in natural order."""

    def key(name: str) -> tuple[int, list[tuple[bool, int | str]]]:
        kind = 0 if name.isupper() and len(name) > 1 else 1 if name[0].isupper() else 2
        return kind, [
            (not part.isdigit(), int(part) if part.isdigit() else part) for part in re.findall(r"\d+|\D+", name)
        ]

    return sorted(names, key=key)


def faults(text: str, is_package: bool = False) -> list[str]:
    """What is wrong with the `__all__` of a module's text."""
    tree = ast.parse(text)
    public = public_names(tree, is_package)
    listed = listed_names(tree)
    if listed is None:
        return [f"no __all__, but public names: {sorted(public)}"] if public else []
    found = []
    if public - set(listed):
        found.append(f"not in __all__: {sorted(public - set(listed))}")
    if listed != in_order(listed):
        found.append(f"__all__ out of order: expected {in_order(listed)}")
    if len(set(listed)) != len(listed):
        found.append("a name stands twice in __all__")
    return found


def test_the_list_of_public_names_is_complete_and_sorted_in_every_module():
    found = [
        f"{path.relative_to(SOURCE)}: {why}"
        for path in MODULES
        for why in faults(path.read_text("utf-8"), path.name == "__init__.py")
    ]
    assert not found, "\n" + "\n".join(found)


def test_every_listed_name_exists():
    missing = []
    for path in MODULES:
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        module = importlib.import_module(".".join(parts).removesuffix(".__init__"))
        missing += [f"{module.__name__}.{name}" for name in getattr(module, "__all__", []) if not hasattr(module, name)]
    assert missing == []


@pytest.mark.parametrize(
    "text",
    [
        "__all__ = ['a']\ndef a(): ...\ndef b(): ...\n",
        "__all__ = ['a']\nclass B: ...\ndef a(): ...\n",
        "__all__ = ['a']\nLIMIT = 3\ndef a(): ...\n",
        "__all__ = ['b', 'a']\ndef a(): ...\ndef b(): ...\n",
        "__all__ = ['a', 'a']\ndef a(): ...\n",
        "def a(): ...\n",
    ],
)
def test_a_planted_omission_is_found(text):
    assert faults(text)


def test_a_package_must_list_what_it_re_exports():
    assert faults("from hilosync.plan.adapter import AdapterPlan\n__all__ = []\n", is_package=True)
    assert faults("from hilosync.plan.adapter import AdapterPlan\n__all__ = ['AdapterPlan']\n", is_package=True) == []
