"""Whatever the load: inside the range, no flapping, and every finite backlog is worked off."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from shove_actors.runtime._scaling import (
    AutoscalerConfig,
    Load,
    ProportionalStrategy,
    ThresholdStrategy,
)
from shove_actors.runtime._simulation import simulate

strategies = st.one_of(
    st.builds(
        lambda down, gap, step: ThresholdStrategy(up=down + gap, down=down, step=step),
        st.floats(0, 3),
        st.floats(0.01, 3),
        st.integers(1, 5),
    ),
    st.builds(ProportionalStrategy, target=st.floats(0.1, 5), tolerance=st.floats(0, 0.9)),
)
configs = st.builds(
    AutoscalerConfig,
    poll_interval=st.sampled_from([0.5, 1.0, 5.0]),
    hysteresis=st.sampled_from([0.0, 3.0, 10.0]),
    cooldown=st.sampled_from([0.0, 7.0, 30.0]),
    strategy=strategies,
)
ranges = st.tuples(st.integers(1, 4), st.integers(0, 8)).map(lambda r: (r[0], r[0] + r[1]))
# Runs of the same rate make loads that hold; single numbers make spikes.
arrivals = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20)), max_size=12).map(
    lambda runs: [rate for rate, length in runs for _ in range(length)]
)


@given(arrivals, configs, ranges, st.integers(1, 5), st.sampled_from([0.3, 1.0, 4.0]))
def test_in_range_without_flapping_until_all_is_done(
    load: list[int],
    config: AutoscalerConfig,
    consumers: tuple[int, int],
    takes: int,
    service_s: float,
) -> None:
    result = simulate(load, config, consumers=consumers, takes=takes, service_s=service_s)
    low, high = consumers
    assert all(low <= sample.consumers <= high for sample in result.samples)
    assert all(low <= after <= high and after != before for _, before, after in result.changes)
    for earlier, later in pairwise(result.changes):
        quiet = max(config.hysteresis, config.cooldown)
        assert later[0] - earlier[0] >= quiet, f"{earlier} and {later} are less than {quiet} apart"
    if result.samples:
        last = result.samples[-1]
        assert (last.pending, last.in_flight) == (0, 0)


@given(
    strategies,
    st.integers(1, 50),
    st.integers(1, 10),
    st.integers(0, 500),
)
def test_a_steady_load_leads_to_a_steady_number(
    strategy: ThresholdStrategy | ProportionalStrategy, consumers: int, takes: int, ready: int
) -> None:
    """Applied again and again to the same load it stops changing, and never turns round."""
    path = [consumers]
    for _ in range(1001):
        sample = Load(
            pending=ready, in_flight=0, consumers=path[-1], takes=takes, minimum=1, maximum=1000
        )
        wanted = sample.clamp(strategy.wanted(sample))
        if wanted == path[-1]:
            break
        path.append(wanted)
    else:
        raise AssertionError(f"never settles: {path[:20]}")
    steps = [later - earlier for earlier, later in pairwise(path)]
    assert all(s > 0 for s in steps) or all(s < 0 for s in steps), path
