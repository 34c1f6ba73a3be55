"""What `make` runs to set itself up works: no test imports it."""

from __future__ import annotations

import runpy
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "compile_kernels.py"


def test_the_kernels_are_compiled_at_set_up():
    runpy.run_path(str(SCRIPT), run_name="__main__")
