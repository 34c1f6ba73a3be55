"""What every compressor must hold, whatever its mathematics."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hilosync.arithmetic.gradient import DenseBlock
from hilosync.compress import correct, encode_corrected, get_compressor, retain
from hilosync.compress.factors import encode_factors
from hilosync.compress.payload import Kind
from hilosync.errors import BudgetTooSmall, ConfigurationError, HiLoError, MalformedPayload, NonFinite, PlanError
from hilosync.plan import AdapterPlan, Block

NAMES = ["dense", "powersgd", "spar", "spar_rd", "topk", "warmup"]


def build(name):
    return get_compressor(
        name, {"compressor": "spar", "settings": {"budget": None}, "steps": 1} if name == "warmup" else None
    )


def materialize(decoded):
    """Ĝ as one flat tensor, by the order that `arithmetic.gradient` defines."""
    flat = []
    for block in decoded:
        if isinstance(block, DenseBlock):
            flat.append(block.values.flatten())
            continue
        total = torch.zeros(block.left.shape[0], block.right.shape[1])
        for k in range(block.left.shape[1]):
            total = total + block.left[:, k : k + 1] * block.right[k : k + 1]
        flat.append((total * block.scale).flatten())
    return torch.cat(flat)


def budget_for(compressor, plan, ranks=2):
    return max(plan.one_rank_bytes() * ranks, compressor.smallest_payload(plan))


@st.composite
def plans_and_gradients(draw):
    """Any few shapes, with the gradients that break codecs."""
    shapes = draw(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 40)), min_size=1, max_size=3))
    turned = draw(st.booleans())
    plan = AdapterPlan(tuple(Block(f"w{i}", *(shape[::-1] if turned else shape)) for i, shape in enumerate(shapes)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    kind = draw(st.sampled_from(["zero", "normal", "deficient", "spike", "mixed", "subnormal"]))
    scale = 10.0 ** draw(st.integers(-30, 30))
    gradient = torch.zeros(plan.size)
    if kind == "normal":
        gradient = torch.randn(plan.size, generator=generator) * scale
    elif kind == "deficient":
        for view in plan.views(gradient):
            view.copy_(torch.outer(torch.randn(view.shape[0]), torch.randn(view.shape[1])) * scale)
    elif kind == "spike":
        gradient = torch.randn(plan.size, generator=generator) * 1e-3
        gradient[draw(st.integers(0, plan.size - 1))] = scale
    elif kind == "mixed":
        exponents = torch.randint(-30, 31, (plan.size,), generator=generator)
        gradient = torch.randn(plan.size, generator=generator) * 10.0**exponents
    elif kind == "subnormal":
        gradient = torch.randn(plan.size, generator=generator) * 1e-40
    return plan, gradient


@pytest.mark.parametrize("name", NAMES)
@given(plans_and_gradients())
@example((AdapterPlan((Block("w", 1, 1),)), torch.tensor([-1e30])))
@settings(max_examples=40, deadline=None)
def test_any_gradient_is_encoded_within_budget_and_decoded_to_the_same_bits(name, case):
    plan, gradient = case
    compressor = build(name)
    budget = budget_for(compressor, plan)
    payload, _ = compressor.encode(plan, compressor.init(plan), gradient, budget)
    assert len(payload) <= budget
    once = materialize(compressor.decode(plan, payload))
    again = materialize(compressor.decode(plan, memoryview(payload)))
    assert torch.equal(once.view(torch.int32), again.view(torch.int32))
    assert torch.isfinite(once).all()
    error = torch.linalg.vector_norm((gradient - once).double())
    assert error <= 1.01 * torch.linalg.vector_norm(gradient.double())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scale", [1e-38, 1e-30, 1e30, 1e33, 1e35, 2.0**120])
def test_the_whole_legal_range_is_encoded_within_every_budget(name, scale, plan):
    compressor = build(name)
    uniform = torch.rand(plan.size, generator=torch.Generator().manual_seed(2)) * 2 - 1
    for gradient in (uniform * scale, torch.full((plan.size,), scale)):
        for share in (0.02, 0.1, 0.6):
            budget = max(int(share * plan.adapter_bytes), compressor.smallest_payload(plan))
            payload, _ = compressor.encode(plan, compressor.init(plan), gradient, budget)
            assert len(payload) <= budget
            decoded = materialize(compressor.decode(plan, payload))
            assert torch.isfinite(decoded).all()
            error = torch.linalg.vector_norm((gradient.double() - decoded.double()) / scale)
            assert error <= torch.linalg.vector_norm(gradient.double() / scale)
            if scale > 1e-38 and share == 0.6:
                assert decoded.any()


@pytest.mark.parametrize("name", NAMES)
@given(plans_and_gradients())
@settings(max_examples=40, deadline=None)
def test_what_is_not_sent_stays_in_the_residual_within_rounding(name, case):
    plan, gradient = case
    compressor = build(name)
    state, residual = compressor.init(plan), torch.zeros(plan.size)
    for _ in range(3):
        before = residual.clone()
        corrected = correct(plan, gradient, residual)
        payload, state = encode_corrected(compressor, plan, state, corrected, budget_for(compressor, plan))
        assert torch.equal(residual, before)
        decoded = compressor.decode(plan, payload)
        retain(plan, corrected, decoded)
        received = materialize(decoded)
        expected = (gradient + before).double() - received.double()
        # One rounding of each of the values that take part, plus a subnormal step.
        for got, want, part in zip(plan.views(residual), plan.views(expected), plan.views(received), strict=True):
            scale = want.abs() + part.abs().max()
            assert ((got - want).abs() <= 1e-6 * scale + 3e-45).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 3e38])
def test_a_gradient_that_is_not_finite_is_refused_by_the_tensors_name(name, bad, plan, gradient):
    compressor = build(name)
    spoiled = gradient.clone()
    spoiled[plan.offsets[5] + 3] = bad
    with pytest.raises(NonFinite, match=plan.blocks[5].name):
        compressor.encode(plan, compressor.init(plan), spoiled, budget_for(compressor, plan))


@pytest.mark.parametrize("name", NAMES)
def test_a_budget_below_the_smallest_payload_is_refused(name, plan, gradient):
    compressor = build(name)
    with pytest.raises(BudgetTooSmall, match=str(compressor.smallest_payload(plan))):
        compressor.encode(plan, compressor.init(plan), gradient, compressor.smallest_payload(plan) - 1)


@pytest.mark.parametrize("name", NAMES)
def test_encode_leaves_the_gradient_as_it_was(name, plan, gradient):
    compressor = build(name)
    before = gradient.clone()
    compressor.encode(plan, compressor.init(plan), gradient, budget_for(compressor, plan))
    assert torch.equal(before, gradient)


@pytest.mark.parametrize("name", NAMES)
def test_damaged_payloads_raise_malformed_payload(name, plan, gradient):
    compressor = build(name)
    payload, _ = compressor.encode(plan, compressor.init(plan), gradient, budget_for(compressor, plan))
    damaged = [b"", payload[:1], payload[:-1], payload + b"\0", bytes(len(payload))]
    damaged += [payload[: len(payload) * k // 20] for k in range(20)]
    for position in range(0, len(payload), max(1, len(payload) // 50)):
        damaged.append(payload[:position] + bytes([payload[position] ^ 0x10]) + payload[position + 1 :])
    for bad in damaged:
        for read in (compressor.decode, compressor.describe):
            with pytest.raises(MalformedPayload):
                read(plan, bad)


@pytest.mark.parametrize("name", NAMES)
@given(body=st.binary(max_size=400))
@settings(max_examples=150, deadline=None)
def test_a_hostile_body_with_a_valid_frame_is_decoded_or_refused(name, body):
    from hilosync.compress.payload import seal

    plan = AdapterPlan((Block("a", 4, 9), Block("b", 7, 4)))
    compressor = build(name)
    kind = compressor.encode(plan, compressor.init(plan), torch.zeros(plan.size), 10**6)[0][0]
    try:
        decoded = compressor.decode(plan, seal(kind, body))
    except HiLoError as error:
        assert isinstance(error, MalformedPayload)
    else:
        assert materialize(decoded).shape == (plan.size,)


@pytest.mark.parametrize("name", NAMES)
def test_a_payload_of_another_compressor_or_plan_is_refused(name, plan, gradient):
    compressor = build(name)
    payload, _ = compressor.encode(plan, compressor.init(plan), gradient, budget_for(compressor, plan))
    with pytest.raises(MalformedPayload):
        get_compressor("dense" if name == "topk" else "topk").decode(plan, payload)
    with pytest.raises(MalformedPayload):
        compressor.decode(AdapterPlan(plan.blocks[:1]), payload)


@pytest.mark.parametrize("kind", [Kind.SPAR, Kind.POWERSGD])
def test_factors_whose_product_leaves_the_range_are_refused_by_the_tensors_name(kind):
    plan = AdapterPlan((Block("a", 4, 9), Block("b", 7, 4)))
    fine, huge = torch.ones(4, 1), torch.full((7, 1), 2.0**70)
    for right, fits in ((2.0**50, True), (2.0**57, False), (2.0**100, False)):
        payload = encode_factors(kind, plan, [(fine, torch.ones(1, 9)), (huge, torch.full((1, 4), right))])
        compressor = build("spar" if kind is Kind.SPAR else "powersgd")
        if fits:
            assert torch.isfinite(materialize(compressor.decode(plan, payload))).all()
        else:
            with pytest.raises(MalformedPayload, match="factors of b"):
                compressor.decode(plan, payload)


@pytest.mark.parametrize("name", NAMES)
def test_settings_rebuild_the_decoder(name, plan, gradient):
    compressor = build(name)
    payload, _ = compressor.encode(plan, compressor.init(plan), gradient, budget_for(compressor, plan))
    rebuilt = get_compressor(compressor.name, compressor.settings())
    assert torch.equal(materialize(rebuilt.decode(plan, payload)), materialize(compressor.decode(plan, payload)))


@pytest.mark.parametrize("name", NAMES)
def test_encoders_with_other_thread_counts_write_payloads_that_decode_everywhere(name, plan, gradient):
    compressor = build(name)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            payload, _ = compressor.encode(plan, compressor.init(plan), gradient, budget_for(compressor, plan))
            results = []
            for reader in (1, 2):
                torch.set_num_threads(reader)
                results.append(materialize(compressor.decode(plan, payload)))
            assert torch.equal(*results)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("name", NAMES)
def test_describe_names_every_block_and_its_bytes_fit_the_payload(name, plan, gradient):
    compressor = build(name)
    payload, _ = compressor.encode(plan, compressor.init(plan), gradient, budget_for(compressor, plan))
    rows = compressor.describe(plan, payload)
    assert [row["name"] for row in rows] == [block.name for block in plan.blocks]
    assert 0 < sum(row["bytes"] for row in rows) <= len(payload)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"compressor": 5},
        {"compressor": None},
        {"compressor": "warmup"},
        {"compressor": "nosuch"},
        {"compressor": "spar", "settings": 5},
        {"compressor": "spar", "steps": -1},
        {"compressor": "spar", "steps": "1"},
    ],
    ids=str,
)
def test_a_warm_up_before_something_else_than_a_compressor_is_refused_in_one_line(settings):
    with pytest.raises(ConfigurationError) as caught:
        get_compressor("warmup", settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_a_gradient_that_is_no_flat_fp32_buffer_of_the_plan_is_refused(name, plan, gradient):
    compressor = build(name)
    state, budget = compressor.init(plan), budget_for(compressor, plan)
    strange = [gradient.double(), gradient.half(), gradient[:-1], torch.cat([gradient, gradient]), gradient[None]]
    for other in strange:
        with pytest.raises(PlanError, match=f"flat fp32 gradient of the plan's {plan.size} elements, got"):
            compressor.encode(plan, state, other, budget)
        with pytest.raises(PlanError, match="flat fp32 gradient"):
            correct(plan, other, torch.zeros(plan.size))
    with pytest.raises(PlanError, match="flat fp32 residual"):
        correct(plan, gradient, torch.zeros(plan.size + 1))
    with pytest.raises(PlanError, match="contiguous residual"):
        correct(plan, gradient, torch.zeros(plan.size, 2)[:, 0])


@pytest.mark.parametrize("name", NAMES)
def test_a_strided_gradient_is_encoded_as_its_copy(name, plan, gradient):
    compressor = build(name)
    budget = budget_for(compressor, plan)
    strided = torch.stack([gradient, -gradient], 1)[:, 0]
    payloads = [compressor.encode(plan, compressor.init(plan), g, budget)[0] for g in (gradient, strided)]
    assert payloads[0] == payloads[1]
