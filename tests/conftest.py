"""What every test starts from: a printed seed, one thread, no network, and honest skips."""

from __future__ import annotations

import importlib.util
import os
import sys
import zlib

# Read when the libraries are first imported, so they are set before any test module is.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["MPLBACKEND"] = "Agg"
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"

import hypothesis
import numpy as np
import pytest

DEFAULT_SEED = 20260101

hypothesis.settings.register_profile(
    "hilosync",
    deadline=None,  # no test fails because the machine is busy
    database=None,  # a run depends on the seed alone
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("hilosync")


def pytest_addoption(parser):
    parser.addoption("--seed", type=int, default=DEFAULT_SEED, help="seed of every random draw in the tests")


@pytest.hookimpl(tryfirst=True)  # before Hypothesis reads its own option
def pytest_configure(config):
    if config.getoption("hypothesis_seed", None) is None:
        config.option.hypothesis_seed = config.getoption("seed")


def pytest_terminal_summary(terminalreporter, config):
    seed = config.getoption("seed")
    terminalreporter.write_line(f"seed {seed}: repeat this run with --seed {seed}")


def pytest_collection_modifyitems(config, items):
    missing = {}
    for item in items:
        if item.get_closest_marker("minutes") is not None and not config.option.markexpr:
            item.add_marker(pytest.mark.skip(reason="takes minutes: run it with -m minutes"))
        for marker, find_missing in PARTS.items():
            if item.get_closest_marker(marker) is None:
                continue
            if marker not in missing:
                missing[marker] = find_missing()
            if missing[marker]:
                item.add_marker(pytest.mark.skip(reason=missing[marker]))


def _missing_gpu():
    import torch

    return "" if torch.cuda.is_available() else "this machine has no CUDA device"


def _missing_net():
    from hilosync.bench.links import network_missing

    return network_missing() or ""


def _missing_nats():
    from hilosync.bench.nats_server import find_nats_server

    if importlib.util.find_spec("nats") is None:
        return "nats-py is not installed"
    if find_nats_server() is None:
        return "there is no `nats-server` on the path or in HILO_NATS_SERVER"
    return ""


def _missing_vllm():
    return "" if importlib.util.find_spec("vllm") else "vLLM is not installed"


PARTS = {"gpu": _missing_gpu, "net": _missing_net, "nats": _missing_nats, "vllm": _missing_vllm}


@pytest.fixture
def seed(request):
    """One number per test, made of the run's seed and the test's name, the same in any order of tests."""
    return (request.config.getoption("seed") + zlib.crc32(request.node.nodeid.encode())) % 2**31


@pytest.fixture
def rng(seed):
    """A NumPy generator that depends on the run's seed and the test's name alone."""
    return np.random.default_rng(seed)


@pytest.fixture(autouse=True)
def one_torch_thread():
    """A test that asks for other threads (`torch.set_num_threads`) does not leave them to the next."""
    yield
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != 1:
        torch.set_num_threads(1)
