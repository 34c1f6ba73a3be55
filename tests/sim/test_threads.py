"""A simulation runs as a user starts it: with all of torch's threads."""

from __future__ import annotations

import os
import subprocess
import sys


def test_a_simulation_ends_where_torch_has_several_threads():
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    program = (
        "import torch; torch.set_num_threads(3)\n"
        "from hilosync.sim import simulate\n"
        "assert simulate(0).failure is None\n"
        "assert torch.get_num_threads() == 3\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, timeout=200, check=False
    )
    assert ended.returncode == 0, ended.stderr.decode()
