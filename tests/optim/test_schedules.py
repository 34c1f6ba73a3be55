import pytest
import torch

from hilosync.optim import AdamW, schedules


def test_a_linear_schedule_rises_and_falls_to_its_end():
    schedule = schedules.linear((1.0, 2.0), steps=10, warmup=4, end=0.1)
    assert schedule(1) == (0.25, 0.5)
    assert schedule(4) == (1.0, 2.0)
    assert schedule(7)[0] == pytest.approx(0.55)
    assert schedule(10) == pytest.approx((0.1, 0.2))
    assert schedule(99) == schedule(10)


def test_a_cosine_schedule_is_halfway_in_the_middle():
    schedule = schedules.cosine(1.0, steps=12, warmup=2)
    assert schedule(1) == (0.5,)
    assert schedule(2) == (1.0,)
    assert schedule(7)[0] == pytest.approx(0.5)
    assert schedule(12)[0] == pytest.approx(0.0)


def test_rates_of_any_schedule_reach_the_record_as_words():
    optimizer = AdamW(weight_decay=0.1)
    parameter = torch.nn.Parameter(torch.zeros(1))
    owner = torch.optim.SGD([parameter], lr=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(owner, step_size=1, gamma=0.5)
    follow = schedules.follow(scheduler)
    for version in range(1, 4):
        assert follow(version) == (0.5**version,)
        by_schedule = optimizer.scalars(version, follow(version))
        assert by_schedule.tobytes() == AdamW(lr=0.5**version, weight_decay=0.1).scalars(version).tobytes()
        owner.step()
        scheduler.step()
    assert schedules.constant(0.3)(5) == (0.3,)
