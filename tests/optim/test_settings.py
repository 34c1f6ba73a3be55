"""Constants and rates that no step could use are refused in one line, before anything is stepped."""

from __future__ import annotations

import numpy as np
import pytest

from hilosync.errors import ConfigurationError, UnknownName
from hilosync.optim import SGDM, AdamW, Lion, Muon, get_optimizer

NAN, INF = float("nan"), float("inf")
BAD = [
    *(
        (name, {"lr": lr})
        for name in ("adamw", "lion", "muon", "sgdm")
        for lr in (NAN, INF, -1e-3, "1", (), (1e-3, NAN))
    ),
    *((name, {"weight_decay": decay}) for name in ("adamw", "lion", "muon", "sgdm") for decay in (NAN, -0.1, None, [])),
    *(
        (name, {"betas": betas})
        for name in ("adamw", "lion")
        for betas in ((0.9, 1.0), (-0.1, 0.9), (0.9,), 0.9, (0.9, NAN), (0.9, 0.99, 0.9))
    ),
    *((name, {"momentum": momentum}) for name in ("muon", "sgdm") for momentum in (1.0, -0.1, NAN, (0.9,), None)),
    *(("adamw", {"eps": eps}) for eps in (0.0, -1e-8, INF, NAN, 1e-60, 10**400)),
    ("torch", {"kind": "RMSprop", "lr": NAN}),
    ("torch", {}),
    ("torch", {"kind": 5}),
    ("torch", {"kind": "RMSprop", "machine": [1]}),
    ("torch", {"kind": "RMSprop", "options": [1]}),
    ("torch", {"kind": "Adam", "options": {"betas": [0.9]}}),
    ("torch", {"kind": "LBFGS"}),
    ("torch", {"kind": "SparseAdam"}),
    ("muon", {"scaling": [1]}),
]


@pytest.mark.parametrize(("name", "settings"), BAD, ids=str)
def test_a_setting_that_no_step_could_use_is_refused_in_one_line(name, settings):
    with pytest.raises(ConfigurationError) as caught:
        get_optimizer(name, settings)
    assert "\n" not in str(caught.value)


def test_a_refusal_says_what_was_expected_and_what_came():
    with pytest.raises(ConfigurationError, match=r"lr of adamw: expected a number, finite and 0 or more, got nan"):
        AdamW(lr=NAN)
    with pytest.raises(ConfigurationError, match=r"betas of lion: expected two numbers, got 0\.9"):
        get_optimizer("lion", {"betas": 0.9})


@pytest.mark.parametrize("kind", [AdamW, Lion, Muon, SGDM])
def test_an_unknown_backend_is_named(kind):
    with pytest.raises(UnknownName, match="'cuda': expected one of auto, numba, numpy, torch"):
        kind(backend="cuda")


@pytest.mark.parametrize("optimizer", [AdamW(), Lion(), Muon(), SGDM(), get_optimizer("torch", {"kind": "RMSprop"})])
@pytest.mark.parametrize("rates", [(), (NAN,), (INF,), (-1e-3,), (1e39,), 1e-3, ("1e-3",), (1e-3, NAN)], ids=str)
def test_rates_that_are_no_rates_are_refused(optimizer, rates):
    with pytest.raises(ConfigurationError):
        optimizer.scalars(1, rates)


@pytest.mark.parametrize("kind", [AdamW, Lion, Muon, SGDM])
def test_a_rate_of_zero_is_a_rate(kind):
    optimizer = kind(lr=0.1)
    assert optimizer.scalars(1, (0.0,))[0, 1] == 0.0
    assert kind(lr=0.0).scalars(1)[0, 1] == 0.0


def test_scalars_beyond_fp32_are_refused_though_their_parts_are_within():
    with pytest.raises(ConfigurationError, match="within fp32's range"):
        AdamW(lr=1e30, weight_decay=1e30).scalars(1)


def test_one_rate_goes_for_every_group():
    optimizer = SGDM(weight_decay=(0.1, 0.2))
    np.testing.assert_array_equal(optimizer.scalars(1, (0.5,)), optimizer.scalars(1, (0.5, 0.5)))
    with pytest.raises(ConfigurationError, match=r"\[2, 3\]"):
        optimizer.scalars(1, (0.5, 0.5, 0.5))
