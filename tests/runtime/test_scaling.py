"""The pure half of autoscaling: strategies, the stabiliser, the simulation."""

from __future__ import annotations

import math

import pytest

from shove_actors import UsageError
from shove_actors.runtime._scaling import (
    AutoscalerConfig,
    Load,
    NoNumber,
    ProportionalStrategy,
    Stability,
    ThresholdStrategy,
    stabilise,
)
from shove_actors.runtime._simulation import SHAPES, shape, simulate


def load(
    pending: int, in_flight: int = 0, consumers: int = 1, takes: int = 1, high: int = 10
) -> Load:
    return Load(
        pending=pending,
        in_flight=in_flight,
        consumers=consumers,
        takes=takes,
        minimum=1,
        maximum=high,
    )


@pytest.mark.parametrize(
    ("sample", "wanted"),
    [
        (load(2), 1),  # exactly on the upper threshold: stays (PC-090)
        (load(3), 2),
        (load(2, consumers=4), 4),  # exactly on the lower one
        (load(1, consumers=4), 3),
        (load(0, consumers=1), 0),  # the range is the caller's business
        (load(0, in_flight=4, consumers=4), 4),  # all busy, nothing pending (PC-088, SW-49)
        (load(19, takes=10), 1),  # ten at once: capacity is 10
        (load(21, takes=10), 2),
    ],
)
def test_threshold_on_and_beside_its_thresholds(sample: Load, wanted: int) -> None:
    assert ThresholdStrategy().wanted(sample) == wanted


def test_threshold_takes_no_step_that_it_would_take_back() -> None:
    close = ThresholdStrategy(up=1.1, down=1.0)
    assert close.wanted(load(3, consumers=2)) == 3
    assert close.wanted(load(5, consumers=4)) == 5
    # 3 consumers would be idle at a load of 2.5 per... with whole messages: 23 of 20.
    sample = load(23, consumers=20)
    assert close.wanted(sample) == 21
    big = ThresholdStrategy(step=8)
    grown = big.wanted(load(3))
    assert grown == 6
    assert big.wanted(load(3, consumers=grown)) == grown


def test_proportional_jumps_and_then_stays() -> None:
    strategy = ProportionalStrategy()
    assert strategy.wanted(load(40, consumers=1, high=50)) == 40
    assert strategy.wanted(load(8, consumers=10)) == 10
    assert strategy.wanted(load(3, consumers=10)) == 3
    assert strategy.wanted(load(0, consumers=3)) == 0


class Waiting:
    async def wanted(self, load: Load) -> int:
        return 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: ThresholdStrategy(up=0.5, down=0.5),
        lambda: ThresholdStrategy(up=math.inf),
        lambda: ThresholdStrategy(down=-1),
        lambda: ThresholdStrategy(step=0),
        lambda: ThresholdStrategy(step=1.5),  # type: ignore[arg-type]
        lambda: ThresholdStrategy(step=True),
        lambda: ThresholdStrategy(up=math.nan),
        lambda: ThresholdStrategy(up="x"),  # type: ignore[arg-type]
        lambda: ThresholdStrategy(down=None),  # type: ignore[arg-type]
        lambda: ProportionalStrategy(target=math.nan),
        lambda: ProportionalStrategy(target="1"),  # type: ignore[arg-type]
        lambda: ProportionalStrategy(tolerance=False),
        lambda: ProportionalStrategy(target=0),
        lambda: ProportionalStrategy(tolerance=1.0),
        lambda: AutoscalerConfig(poll_interval=0),
        lambda: AutoscalerConfig(hysteresis=-1),
        lambda: AutoscalerConfig(cooldown=math.inf),
        *(
            lambda name=name, value=value: AutoscalerConfig(**{name: value})
            for name in ("poll_interval", "hysteresis", "cooldown")
            for value in (None, "1", True, math.nan, math.inf, -1, 1e10)
        ),
        lambda: AutoscalerConfig(strategy=object()),  # type: ignore[arg-type]
        lambda: AutoscalerConfig(strategy=ThresholdStrategy),  # type: ignore[arg-type]
        lambda: AutoscalerConfig(strategy=Waiting()),  # type: ignore[arg-type]
        lambda: simulate([1], AutoscalerConfig(), consumers=(0, 1)),
        lambda: shape("mountain"),
    ],
)
def test_what_makes_no_sense_is_refused(make: object) -> None:
    with pytest.raises(UsageError):
        make()  # type: ignore[operator]


CONFIG = AutoscalerConfig(hysteresis=10, cooldown=30)


def run(*samples: tuple[float, Load | None]) -> list[tuple[float, int]]:
    state, acted = Stability(), []
    for now, sample in samples:
        state, target = stabilise(state, sample, now, CONFIG)
        if target is not None:
            acted.append((now, target))
    return acted


def test_acts_when_the_condition_has_held() -> None:
    assert run((0, load(9)), (5, load(9)), (9.9, load(9)), (10, load(9))) == [(10, 2)]


def test_pc091_a_spike_and_another_one_are_not_a_condition_that_holds() -> None:
    spikes = [(float(t), load(9 if t in (0, 40, 80) else 1)) for t in range(0, 100, 5)]
    assert run(*spikes) == []


def test_the_hold_is_broken_in_the_cooldown_too() -> None:
    # SW-50: calls at 10 and 15, quiet at 20, calls again at 40: must hold from 40 on.
    samples = [(0, load(9)), (10, load(9)), (15, load(9, consumers=2)), (20, load(2, consumers=2))]
    later = [(40, load(9, consumers=2)), (45, load(9, consumers=2)), (50, load(9, consumers=2))]
    assert run(*samples, *later) == [(10, 2), (50, 3)]


def test_what_cannot_be_done_starts_no_cooldown() -> None:
    # At the maximum for a long time, then idle: shrinks as soon as that has held (SW-50).
    full = [(float(t), load(99, consumers=10)) for t in range(0, 60, 5)]
    idle = [(60.0, load(0, consumers=10)), (65.0, load(0, consumers=10))]
    assert run(*full, *idle, (70.0, load(0, consumers=10))) == [(70.0, 9)]


class Answers:
    def __init__(self, answer: object) -> None:
        self.answer = answer

    def wanted(self, load: Load) -> int:
        return self.answer  # type: ignore[return-value]


@pytest.mark.parametrize(
    "answer", [2.5, math.nan, math.inf, -math.inf, None, True, "3", [3], 1 + 0j], ids=repr
)
def test_an_answer_that_is_no_whole_number_is_no_decision(answer: object) -> None:
    config = AutoscalerConfig(hysteresis=0, cooldown=0, strategy=Answers(answer))
    with pytest.raises(NoNumber, match=r"Answers\.wanted answered .* not a whole number"):
        stabilise(Stability(), load(9), 0, config)


@pytest.mark.parametrize(
    ("answer", "target"), [(3, 3), (3.0, 3), (10**30, 10), (1e30, 10), (-5, 1), (-5.0, 1)]
)
def test_whole_answers_are_cut_to_the_range(answer: float, target: int) -> None:
    config = AutoscalerConfig(hysteresis=0, cooldown=0, strategy=Answers(answer))
    decided = stabilise(Stability(), load(9, consumers=2), 0, config)[1]
    assert decided == target
    assert type(decided) is int


def test_pc086_unknown_is_neither_a_backlog_nor_its_absence() -> None:
    assert run((0, load(9)), (5, None), (10, load(9)), (15, load(9)), (20, load(9))) == [(20, 2)]
    assert run(*((float(t), None) for t in range(100))) == []


def test_an_action_resets_the_hold() -> None:
    quick = AutoscalerConfig(hysteresis=10, cooldown=0)
    state, acted = Stability(), []
    for now in range(0, 41, 5):
        state, target = stabilise(state, load(99), now, quick)
        if target is not None:
            acted.append(now)
    assert acted == [10, 25, 40]


def test_min_equal_max_never_acts() -> None:
    fixed = Load(pending=9999, in_flight=0, consumers=3, takes=1, minimum=3, maximum=3)
    assert run(*((float(t), fixed) for t in range(0, 200, 5))) == []


def test_a_simulated_step_grows_and_shrinks_again() -> None:
    result = simulate(shape("step"), AutoscalerConfig(), consumers=(1, 12), service_s=1.0)
    assert result.most_consumers == 12
    last = result.samples[-1]
    assert (last.pending, last.in_flight, last.consumers) == (0, 0, 1)
    ups = [change for change in result.changes if change[2] > change[1]]
    assert ups[0][0] >= 60 + 10  # not before the load has held
    assert simulate(shape("step"), AutoscalerConfig(), consumers=(1, 12)) == result


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_the_ready_made_loads_are_drained(name: str) -> None:
    arrivals = shape(name)
    assert len(arrivals) == 600
    assert sum(arrivals) > 300
    result = simulate(arrivals, AutoscalerConfig(), consumers=(1, 10))
    assert sum(sample.arrived for sample in result.samples) == sum(arrivals)
    assert result.samples[-1].pending == 0
    assert result.consumer_seconds > len(result.samples) - 1
