"""Hypothesis strategies for programs that send messages. Needs Hypothesis (extra `test`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from shove_actors._errors import UsageError

from ._fault_draws import Rates
from ._fault_kinds import (
    Crash,
    DeliverTwice,
    Disconnect,
    Fault,
    LateAck,
    LatePuback,
    LoseAck,
    LosePuback,
    LoseRenewal,
    RestartServer,
    Slow,
    Stall,
)
from ._faults import FaultPlan
from ._given import check_moves
from ._moves import Move
from ._plan_steps import At, On, at, on

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

try:
    from hypothesis import strategies as st
except ImportError as exc:
    raise UsageError(
        "shove_actors.testing.strategies needs Hypothesis: pip install 'shove-actors[test]'"
    ) from exc

#: What a handler that takes no time does.
QUICK_MOVES: tuple[Move, ...] = ("ack", "retry", "reject", "defer", "raise")
ALL_MOVES: tuple[Move, ...] = get_args(Move)


def keys(*, max_size: int = 20) -> SearchStrategy[str]:
    """Sequence keys: any text that UTF-8 can spell, the empty one included."""
    return st.text(st.characters(exclude_categories=["Cs"]), max_size=max_size)


def payloads(*, max_size: int = 200) -> SearchStrategy[bytes]:
    """Payloads of a raw topic."""
    return st.binary(max_size=max_size)


def message_ids() -> SearchStrategy[str]:
    """What `publish(message_id=...)` takes."""
    return st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=40)


def shard_counts(*, most: int = 16) -> SearchStrategy[int]:
    """For `routing_shards`: few are likelier, and one is the simplest."""
    return st.one_of(st.integers(1, min(4, most)), st.integers(1, most))


def scripts(
    *, moves: tuple[Move, ...] = ALL_MOVES, most: int = 4
) -> SearchStrategy[tuple[Move, ...]]:
    """What a handler does in the attempts of one message (see `Simulation.publish`): anything in
    turn, or always the same."""
    check_moves(moves, "moves")
    same = st.tuples(st.sampled_from(moves), st.integers(1, most + 2)).map(lambda t: t[1] * t[:1])
    return st.one_of(st.lists(st.sampled_from(moves), max_size=most).map(tuple), same)


def seconds(*, most: float = 20.0) -> SearchStrategy[float]:
    """Durations with a meaning: around a tick, a retry, a lease."""
    return st.sampled_from([0.0, 0.05, 0.5, 1.0, 3.0, 7.0, 12.0, 20.0]).filter(lambda s: s <= most)


def faults(
    *, processes: tuple[str, ...] = (), crash: bool = True, most_s: float = 20.0
) -> SearchStrategy[Fault]:
    """Any fault that needs no stream's name. `processes`: whom it can happen to, besides whoever
    an event belongs to."""
    whom = st.sampled_from((None, *processes))
    for_s = seconds(most=most_s)
    kinds: list[SearchStrategy[Fault]] = [
        st.just(LoseAck()),
        st.builds(LateAck, for_s),
        st.just(LosePuback()),
        st.builds(LatePuback, for_s),
        st.just(LoseRenewal()),
        st.just(DeliverTwice()),
        st.builds(Disconnect, whom, for_s),
        st.builds(Stall, whom, for_s, st.sampled_from(["both", "up", "down"])),
        st.builds(Slow, whom, st.sampled_from([0.01, 0.2, 0.5]), for_s),
        st.builds(RestartServer, seconds(most=min(3.0, most_s)), st.booleans()),
    ]
    if crash:
        kinds.append(st.builds(Crash, whom, st.booleans()))
    return st.one_of(kinds)


def _steps(moment: float, nth: int, fault: Fault, by_event: bool, event: str) -> At | On:
    if by_event:
        try:
            return on(event, nth, fault)  # type: ignore[arg-type]
        except UsageError:
            pass  # this fault does not happen to such an event
    return at(moment, fault)


def fault_plans(
    *, most: int = 6, within_s: float = 30.0, events: int = 50, crash: bool = True
) -> SearchStrategy[FaultPlan]:
    """Scripted plans of up to `most` steps: within so many seconds, or so many events of a kind."""
    step = st.builds(
        _steps,
        st.floats(0.0, within_s, allow_nan=False).map(lambda s: round(s, 2)),
        st.integers(1, events),
        faults(crash=crash),
        st.booleans(),
        st.sampled_from(["publish", "deliver", "ack", "nak", "renew"]),
    )
    return st.lists(step, max_size=most).map(lambda steps: FaultPlan(*steps))


def rates() -> SearchStrategy[Rates]:
    """Rates of a drawn plan: nothing, little, the default, or one kind of trouble only."""
    only = [
        Rates.only(),
        Rates.only(lose_ack=0.01, late_ack=0.01),
        Rates.only(lose_puback=0.01, late_puback=0.01),
        Rates.only(crash=0.002),
        Rates.only(crash=0.05),
        Rates.only(disconnect=0.1),
        Rates.only(stall=0.1, slow=0.05, longest_s=15.0),
        Rates.only(restart=0.1),
        Rates.only(delete_consumer=0.05),
        Rates.only(stream_full=0.1),
        Rates(),
        Rates(delete_consumer=0.01, stream_full=0.02),
    ]
    return st.sampled_from(only)
