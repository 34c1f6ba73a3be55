import lion_pytorch  # noqa: F401 (its class is named below)
import pytest
import torch

from hilosync.arithmetic import DenseBlock
from hilosync.errors import ConfigurationError, RunMismatch, UnknownName
from hilosync.optim import TorchOptimizer, get_optimizer, init_state
from hilosync.optim.torch_optimizer import machine_fingerprint
from hilosync.plan import AdapterPlan, Block

PLAN = AdapterPlan((Block("a", 3, 5), Block("b", 7, 3, group=1)))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("RMSprop", {"momentum": 0.5}),
        ("Adagrad", {"initial_accumulator_value": 0.25}),
        ("Adam", {"amsgrad": True}),
        ("Rprop", {}),
        ("lion_pytorch.lion_pytorch:Lion", {}),
    ],
)
def test_a_replica_gives_the_bits_of_the_optimizer_itself(kind, options):
    learner = TorchOptimizer(kind, options, lr=(1e-2, 1e-3))
    replica = get_optimizer(learner.name, learner.settings())
    generator = torch.Generator().manual_seed(0)
    state = init_state(PLAN, replica, torch.randn(PLAN.size, generator=generator))
    params = [torch.nn.Parameter(view.clone()) for view in PLAN.views(state.params)]
    known = learner._build([{"params": [param], "lr": 1.0} for param in params])
    for version in range(1, 8):
        gradients = [torch.randn(b.rows, b.columns, generator=generator) for b in PLAN.blocks]
        scalars = learner.scalars(version)
        for param, gradient, group, row in zip(params, gradients, known.param_groups, scalars, strict=True):
            param.grad, group["lr"] = gradient.clone(), float(row[0])
        known.step()
        replica.step(PLAN, state, tuple(DenseBlock(g) for g in gradients), scalars)
    for param, view in zip(params, PLAN.views(state.params), strict=True):
        assert torch.equal(param, view)


def test_a_replica_on_another_machine_is_told_before_it_serves():
    settings = TorchOptimizer("RMSprop").settings()
    settings["machine"] = {**machine_fingerprint(), "torch": "1.0", "gpu": "another"}
    with pytest.raises(RunMismatch, match=r"torch is .*'1\.0'.*gpu is .*'another'"):
        get_optimizer("torch", settings)


def test_state_that_cannot_be_replicated_is_refused_by_name():
    with pytest.raises(ConfigurationError, match="row_var"):
        TorchOptimizer("Adafactor")


def test_unknown_classes_and_options_are_named():
    with pytest.raises(UnknownName, match="RMSprop"):
        TorchOptimizer("NoSuch")
    with pytest.raises(UnknownName, match="imported"):
        TorchOptimizer("os:system")
    with pytest.raises(ConfigurationError, match="bogus"):
        TorchOptimizer("RMSprop", {"bogus": 1})
