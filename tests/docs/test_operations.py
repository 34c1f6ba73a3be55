"""Every message that docs/operations.md quotes is one that the programs can print."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import hilosync
from hilosync.runtime.points import POINTS

SOURCE = Path(hilosync.__file__).parent
TEXT = (SOURCE.parent.parent / "docs" / "operations.md").read_text("utf-8")
MESSAGES = [line.removeprefix("> ") for line in TEXT.splitlines() if line.startswith("> ")]


def texts_of(tree: ast.AST) -> list[str]:
    """All texts in a module, with `…` where something is filled in; concatenations are one text."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            found.append("".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value.replace("%s", "…").replace("%d", "…"))
    return found


PRINTED = "\n".join(text for path in SOURCE.rglob("*.py") for text in texts_of(ast.parse(path.read_text("utf-8"))))


@pytest.mark.parametrize("message", MESSAGES)
def test_every_quoted_message_can_be_printed(message):
    parts = [part.strip(" ;:,)") for part in re.split("…|: No space left on device", message)]
    parts = [part for part in parts if len(part) > 12]
    assert parts, "a quotation says too little to be found"
    for part in parts:
        assert part in PRINTED, part


def test_every_kill_point_is_named():
    for point in POINTS:
        assert f"`{point.partition(' ')[2]}`" in TEXT
