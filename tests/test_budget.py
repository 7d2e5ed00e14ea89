from __future__ import annotations

from slurm_nvhc.proc.budget import Budget


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_quarter_is_kept_for_acting() -> None:
    clock = Clock()
    budget = Budget(8.0, clock)
    assert (budget.left_s(), budget.sense_s()) == (8.0, 6.0)
    clock.now += 5.0
    assert (budget.left_s(), budget.sense_s()) == (3.0, 1.0)
    clock.now += 1.5
    assert (budget.left_s(), budget.sense_s()) == (1.5, 0.0)


def test_never_negative() -> None:
    clock = Clock()
    budget = Budget(8.0, clock)
    clock.now += 100.0
    assert (budget.left_s(), budget.sense_s()) == (0.0, 0.0)
    assert Budget(-1.0, clock).left_s() == 0.0
    assert Budget(0.0, clock).sense_s() == 0.0


def test_the_default_clock_runs() -> None:
    budget = Budget(1000.0)
    assert 0.0 < budget.left_s() <= 1000.0
