from dataclasses import replace

import numpy as np
import pytest
import torch

from hilosync.arithmetic import DenseBlock, LowRankBlock, portable
from hilosync.arithmetic.digest import state_sums
from hilosync.errors import ConfigurationError, MalformedPayload
from hilosync.optim import SGDM, AdamW, Lion, Muon, adamw, init_state, threads
from hilosync.plan import AdapterPlan, Block

PLAN = AdapterPlan(
    (
        Block("one", 1, 1),
        Block("wide", 3, 4099),
        Block("tall", 257, 3, group=1),
        Block("square", 17, 19),
        Block("dense", 5, 7, group=1),
    )
)
TRICKY = [0.0, -0.0, 1e-45, -1e-45, 1.1e-38, -3e-39, 1e-30, -1e-30, 1e-20, 1.0, -1.0, 3e4, -1e8, 3e8]
OPTIMIZERS = {
    "adamw": AdamW(lr=(1e-3, 3e-2), weight_decay=0.1),
    "adamw, no decay": AdamW(betas=(0.5, 0.9), eps=1e-4),
    "lion": Lion(lr=(1e-3, 3e-2), weight_decay=0.1),
    "sgdm": SGDM(lr=(1e-3, 3e-2), weight_decay=(0.0, 0.1)),
    "sgdm, nesterov": SGDM(nesterov=True),
    "muon": Muon(lr=(1e-3, 3e-2), weight_decay=0.1),
    "muon, plain momentum, scaled as AdamW": Muon(nesterov=False, scaling="match_rms_adamw"),
}


def tricky(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Normal values with subnormals, zeros of both signs, tiny and huge values among them."""
    values = torch.randn(shape, generator=generator)
    chosen = torch.tensor(TRICKY)[torch.randint(len(TRICKY), shape, generator=generator)]
    return torch.where(torch.rand(shape, generator=generator) < 0.3, chosen, values)


def gradients(seed: int, steps: int) -> list:
    generator = torch.Generator().manual_seed(seed)
    result = []
    for step in range(steps):
        ranks = [(index * 3 + step) % 10 for index in range(4)]
        parts = [
            LowRankBlock(tricky((b.rows, k), generator), tricky((k, b.columns), generator), 0.75 + step)
            for b, k in zip(PLAN.blocks, ranks, strict=False)
        ]
        result.append((*parts, DenseBlock(tricky((5, 7), generator))))
    return result


def moved(part: LowRankBlock | DenseBlock, device: str) -> LowRankBlock | DenseBlock:
    if isinstance(part, DenseBlock):
        return DenseBlock(part.values.to(device))
    return LowRankBlock(part.left.to(device), part.right.to(device), part.scale)


def trajectory(optimizer, steps: int = 6, device: str = "cpu"):
    params = tricky((PLAN.size,), torch.Generator().manual_seed(1))
    state = init_state(PLAN, optimizer, params.to(device))
    sums = [
        optimizer.step(PLAN, state, tuple(moved(part, device) for part in gradient), optimizer.scalars(version))
        for version, gradient in enumerate(gradients(2, steps), start=1)
    ]
    return state, sums


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=list(OPTIMIZERS))
@pytest.mark.parametrize("backend", ["auto", "numba", "torch"])
def test_every_backend_gives_the_bits_of_the_specification(optimizer, backend):
    expected, expected_sums = trajectory(replace(optimizer, backend="numpy"))
    found, found_sums = trajectory(replace(optimizer, backend=backend))
    for name, a, b in zip(["params", *sorted(expected.slots)], expected.buffers(), found.buffers(), strict=True):
        assert np.array_equal(a.numpy().view(np.uint32), b.numpy().view(np.uint32)), name
    for a, b in zip(expected_sums, found_sums, strict=True):
        assert a.tolist() == b.tolist()
    assert found_sums[-1].tolist() == state_sums(PLAN, found).tolist()
    assert all(buffer.isfinite().all() for buffer in expected.buffers())


def planted_fma(p, m, v, g, s):
    decay, step_size, beta1, rest1, beta2, rest2, epsilon = s
    # fp64 holds the product of two fp32 numbers, so one rounding at the end is a fused multiply-add.
    m = (m.double() * beta1 + (g * rest1).double()).float()
    v = v * beta2 + (g * g) * rest2
    return p * decay - torch.div(m, portable.exact_sqrt(v) + epsilon) * step_size, m, v


def planted_root(p, m, v, g, s):
    decay, step_size, beta1, rest1, beta2, rest2, epsilon = s
    m, v = m * beta1 + g * rest1, v * beta2 + (g * g) * rest2
    # torch.sqrt where it is not correctly rounded, and its error planted where it is.
    root = torch.nextafter(portable.exact_sqrt(v), torch.ones_like(v))
    return p * decay - torch.div(m, root + epsilon) * step_size, m, v


def planted_addcdiv(p, m, v, g, s):
    decay, step_size, beta1, rest1, beta2, rest2, epsilon = s
    m, v = m * beta1 + g * rest1, v * beta2 + (g * g) * rest2
    return torch.addcdiv(p * decay, m, portable.exact_sqrt(v) + epsilon, value=-step_size), m, v


@pytest.mark.parametrize("planted", [planted_fma, planted_root, planted_addcdiv])
def test_a_planted_violation_does_not_go_unnoticed(monkeypatch, planted):
    monkeypatch.setattr(adamw, "RULE", replace(adamw.RULE, portable=planted))
    optimizer = OPTIMIZERS["adamw"]
    expected, expected_sums = trajectory(replace(optimizer, backend="numpy"))
    found, found_sums = trajectory(replace(optimizer, backend="torch"))
    assert not all(torch.equal(a, b) for a, b in zip(expected.buffers(), found.buffers(), strict=True))
    assert expected_sums[-1].tolist() != found_sums[-1].tolist()


def test_two_threads_give_the_bits_of_one(monkeypatch):
    monkeypatch.setattr(threads, "_SMALLEST", 1)
    before = torch.get_num_threads()
    try:
        for optimizer in OPTIMIZERS.values():
            torch.set_num_threads(1)
            expected, expected_sums = trajectory(optimizer)
            torch.set_num_threads(3)
            found, found_sums = trajectory(optimizer)
            for a, b in zip(expected.buffers(), found.buffers(), strict=True):
                assert torch.equal(a.view(torch.int32), b.view(torch.int32)), optimizer.name
            assert [s.tolist() for s in expected_sums] == [s.tolist() for s in found_sums]
    finally:
        torch.set_num_threads(before)


def test_a_gradient_of_another_shape_is_refused_before_it_is_applied():
    optimizer = AdamW()
    state = init_state(PLAN, optimizer, torch.zeros(PLAN.size))
    good = gradients(0, 1)[0]
    bad = (*good[:3], LowRankBlock(torch.ones(17, 2), torch.ones(2, 18)), good[4])
    with pytest.raises(MalformedPayload, match="square"):
        optimizer.step(PLAN, state, bad, optimizer.scalars(1))
    with pytest.raises(MalformedPayload, match="5 blocks"):
        optimizer.step(PLAN, state, good[:4], optimizer.scalars(1))
    assert not state.params.any()


def test_scalars_of_another_number_of_groups_are_refused():
    optimizer = AdamW(lr=(1e-3, 1e-3, 1e-3))
    state = init_state(PLAN, optimizer, torch.zeros(PLAN.size))
    with pytest.raises(ConfigurationError, match="2 param groups, got 3"):
        optimizer.step(PLAN, state, gradients(0, 1)[0], optimizer.scalars(1))


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=list(OPTIMIZERS))
def test_strides_of_a_gradient_change_no_bits(optimizer):
    plan = AdapterPlan((Block("one", 64, 33), Block("two", 33, 64), Block("dense", 8, 40, group=1)))
    U, V, W = torch.randn(64, 5), torch.randn(5, 64), torch.randn(40, 8)
    strided = (
        LowRankBlock(U[:, 1:2], torch.randn(33, 4)[:, :1].T),
        LowRankBlock(torch.ones(1, 1).expand(33, 2), V[::2][:2]),
        DenseBlock(W.T),
    )
    copied = tuple(
        DenseBlock(part.values.contiguous())
        if isinstance(part, DenseBlock)
        else LowRankBlock(part.left.contiguous(), part.right.contiguous(), part.scale)
        for part in strided
    )
    states = [init_state(plan, optimizer, torch.zeros(plan.size)) for _ in range(2)]
    for state, gradient in zip(states, (strided, copied), strict=True):
        optimizer.step(plan, state, gradient, optimizer.scalars(1))
    assert all(torch.equal(a, b) for a, b in zip(*(state.buffers() for state in states), strict=True))
