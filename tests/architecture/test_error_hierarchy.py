"""The hierarchy drawn at the top of errors.py is the one that the classes form."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import hilosync
from hilosync import errors

BRANCH = re.compile(r"^(?P<indent>[ │├└─]*)(?P<name>[A-Z]\w+)(?:\s+\((?P<code>\d)\))?(?:\s{2,}|$)")


def drawn(docstring: str) -> tuple[dict[str, str | None], dict[str, int]]:
    """Reads the drawing: each class's parent, and the exit codes that are written beside classes."""
    parents: dict[str, str | None] = {}
    codes: dict[str, int] = {}
    path: list[str] = []
    for line in docstring.split("::\n", 1)[1].splitlines():
        if not line.startswith("    ") or not (match := BRANCH.match(line[4:])):
            continue
        depth = len(match["indent"]) // 4
        path = [*path[:depth], match["name"]]
        parents[match["name"]] = path[depth - 1] if depth else None
        if match["code"]:
            codes[match["name"]] = int(match["code"])
    return parents, codes


def test_the_drawing_shows_the_real_class_tree():
    classes = {name: value for name, value in vars(errors).items() if isinstance(value, type)}
    classes = {name: value for name, value in classes.items() if issubclass(value, Exception)}
    real = {name: None if value is errors.HiLoError else value.__base__.__name__ for name, value in classes.items()}
    assert drawn(errors.__doc__)[0] == real


def test_the_drawing_shows_the_real_exit_codes():
    _, codes = drawn(errors.__doc__)
    assert codes
    assert codes == {name: getattr(errors, name).exit_code for name in codes}


def test_a_class_has_the_exit_code_of_the_nearest_code_drawn_above_it():
    parents, codes = drawn(errors.__doc__)
    for name in parents:
        drawn_above = name
        while drawn_above not in codes and parents[drawn_above]:
            drawn_above = parents[drawn_above]
        assert getattr(errors, name).exit_code == codes.get(drawn_above, errors.HiLoError.exit_code), name


def test_a_drawing_that_omits_or_moves_a_class_would_be_noticed():
    lines = errors.__doc__.splitlines(keepends=True)
    without = "".join(line for line in lines if "Fenced" not in line)
    assert drawn(without)[0].keys() == drawn(errors.__doc__)[0].keys() - {"Fenced"}
    moved = errors.__doc__.replace("│   ├── Fenced", "├── Fenced")
    assert drawn(moved)[0]["Fenced"] == "HiLoError"


def test_no_other_module_defines_an_error():
    source = Path(hilosync.__file__).parent
    names = {*errors.__all__, "BaseException", "Exception"}
    strays = []
    for path in source.rglob("*.py"):
        if path.name == "errors.py" and path.parent == source:
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                bases = {ast.unparse(base).split(".")[-1] for base in node.bases}
                if bases & names or any(base.endswith("Error") for base in bases):
                    strays.append(f"{path.relative_to(source)}:{node.lineno}: {node.name}")
    assert strays == []
