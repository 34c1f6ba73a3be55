"""The committed digests of `golden_trajectories.py`, under every switch that is known to change bits."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
GOLDEN = json.loads((HERE / "golden.json").read_text())
SPECIFICATION = HERE.parents[1] / "src" / "hilosync" / "arithmetic" / "specification.py"

CASES = {
    "NumPy": (["numpy"], {}),
    "NumPy alone, without torch and Numba": (["--specification", str(SPECIFICATION)], {}),
    "Numba on one thread": (["numba", "1"], {"NUMBA_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}),
    "Numba on two threads": (["numba", "2"], {"NUMBA_NUM_THREADS": "2", "OMP_NUM_THREADS": "2"}),
    "Numba for a generic CPU": (["numba"], {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}),
    "torch without vector instructions": (["torch"], {"ATEN_CPU_CAPABILITY": "default"}),
    "torch with AVX2": (["torch"], {"ATEN_CPU_CAPABILITY": "avx2"}),
    "torch with AVX-512": (["torch"], {"ATEN_CPU_CAPABILITY": "avx512"}),
    "torch on two threads": (["torch", "2"], {"OMP_NUM_THREADS": "2"}),
    "torch with MKL's compatible path": (["torch"], {"MKL_CBWR": "COMPATIBLE"}),
}


def digests(arguments: list[str], environment: dict[str, str]) -> dict[str, str]:
    script = [sys.executable, str(HERE / "golden_trajectories.py"), *arguments]
    process = subprocess.run(
        script, env={**os.environ, **environment}, capture_output=True, text=True, timeout=280, check=True
    )
    return json.loads(process.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_golden_digests_hold(case):
    arguments, environment = CASES[case]
    wanted = environment.get("ATEN_CPU_CAPABILITY")
    features = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    if wanted in ("avx2", "avx512") and {"avx2": " avx2 ", "avx512": " avx512f "}[wanted] not in features:
        pytest.skip(f"this CPU has no {wanted}, so torch would crash if told to use it")
    assert digests(arguments, environment) == GOLDEN


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no CUDA device: the CPU's and the GPU's bits are not compared"
)
def test_a_gpu_gives_the_bits_of_the_cpu():
    from test_backends import OPTIMIZERS, trajectory

    for name, optimizer in OPTIMIZERS.items():
        on_cpu, cpu_sums = trajectory(optimizer)
        on_gpu, gpu_sums = trajectory(optimizer, device="cuda")
        for a, b in zip(on_cpu.buffers(), on_gpu.buffers(), strict=True):
            assert torch.equal(a.view(torch.int32), b.cpu().view(torch.int32)), name
        assert [sums.tolist() for sums in cpu_sums] == [sums.tolist() for sums in gpu_sums], name
