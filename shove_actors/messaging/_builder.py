"""TopologyBuilder: says a topology step by step; `build()` checks the whole."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from shove_actors._errors import TopologyError

from . import _names
from ._stream_config import NatsStreamConfig
from ._topology import DEFAULT_SHARDS, SequenceFailure, Topology, hold_queue


@dataclass(frozen=True)
class TopologyBuilder:
    """Builds a `Topology`. Immutable: each call returns a new builder, so a base can be shared.

        ORDERS = TopologyBuilder("orders").hold_queue(5).hold_queue(30).dlq().build()
        LEDGER = (
            TopologyBuilder("ledger").sequenced(SequenceFailure.SKIP).routing_shards(16)
            .hold_queue(1).dlq().build()
        )

    Values are checked by `build()`, which raises one `TopologyError` naming the rule and the fix.
    """

    queue: str
    _holds: tuple[float, ...] = field(default=(), kw_only=True)
    _dlq: str | None = field(default=None, kw_only=True)
    _own_dlq: bool = field(default=False, kw_only=True)
    _failure: SequenceFailure | None = field(default=None, kw_only=True)
    _shards: int | None = field(default=None, kw_only=True)
    _shards_too_early: bool = field(default=False, kw_only=True)
    _keyed: int | None = field(default=None, kw_only=True)
    _keyed_asked: bool = field(default=False, kw_only=True)
    _keyed_too_early: bool = field(default=False, kw_only=True)
    _allow_loss: bool = field(default=False, kw_only=True)
    _config: NatsStreamConfig | None = field(default=None, kw_only=True)
    _external: bool = field(default=False, kw_only=True)
    _subjects: tuple[str, ...] | None = field(default=None, kw_only=True)

    def hold_queue(self, seconds: float) -> TopologyBuilder:
        """Adds a delay stage; repeat it with ascending delays.

        Retry n waits in stage n, later retries in the last. Rounded to whole milliseconds. A topic
        whose handler defers should have one: without it a deferral is only remembered by the
        process that made it, and counts as an attempt after a restart.
        """
        return replace(self, _holds=(*self._holds, seconds))

    def dlq(self) -> TopologyBuilder:
        """Keeps failed messages in `{queue}-dlq`."""
        return replace(self, _own_dlq=True, _dlq=None)

    def dlq_named(self, name: str) -> TopologyBuilder:
        """Keeps failed messages in a dead-letter queue of that name; not shared with others."""
        return replace(self, _own_dlq=False, _dlq=name)

    def sequenced(self, on_failure: SequenceFailure) -> TopologyBuilder:
        """Handles messages of one key in order. Keys that share a lane wait for each other."""
        return replace(self, _failure=on_failure)

    def routing_shards(self, count: int) -> TopologyBuilder:
        """Number of lanes of a sequenced topic (default 8). Call it after `sequenced`."""
        return replace(self, _shards=count, _shards_too_early=self._failure is None)

    def keyed(self, max_in_flight: int = 256) -> TopologyBuilder:
        """Handles many keys of a lane at once, one message of each. Call it after `sequenced`.

        A lane is then handled by one process at a time, with up to `max_in_flight` handlers; the
        others stand by. Without it a lane handles one message at a time, whichever process gets
        it. Needs nats-server 2.14 or newer, which `declare` checks. See docs/keyed.md.
        """
        return replace(
            self,
            _keyed=max_in_flight,
            _keyed_asked=True,
            _keyed_too_early=self._failure is None,
        )

    def allow_message_loss(self) -> TopologyBuilder:
        """Accepts that a sequenced topic has no dead-letter queue or no hold queue."""
        return replace(self, _allow_loss=True)

    def nats_stream_config(self, config: NatsStreamConfig) -> TopologyBuilder:
        """Bounds, retention and storage of the main stream."""
        return replace(self, _config=config)

    def nats_external_stream(self) -> TopologyBuilder:
        """The main stream, named after the queue, belongs to somebody else."""
        return replace(self, _external=True)

    def nats_subjects(self, subjects: Iterable[str]) -> TopologyBuilder:
        """Binds these subjects, wildcards allowed, instead of the queue's name."""
        if isinstance(subjects, str) or not isinstance(subjects, Iterable):
            # A str is an iterable of its characters: the one mistake a list would hide.
            raise TopologyError(
                f"nats_subjects takes a list of subjects, not {type(subjects).__name__}: "
                'nats_subjects(["a.>"])'
            )
        return replace(self, _subjects=tuple(subjects))

    def build(self) -> Topology:
        """The topology. Raises `TopologyError` naming the rule and the fix (yours to fix)."""
        _names.check_name(self.queue, "queue name")
        if self._shards_too_early:
            raise TopologyError(
                "routing_shards was called before sequenced: call "
                "sequenced(SequenceFailure.SKIP) first, lanes belong to sequenced topics only"
            )
        if self._keyed_too_early:
            raise TopologyError(
                "keyed was called before sequenced: call sequenced(SequenceFailure.SKIP) first, "
                "only sequenced topics have lanes"
            )
        if self._keyed_asked and self._keyed is None:
            raise TopologyError(
                f"keyed(None) on {_names.shown(self.queue)}: give a whole number, as in "
                "keyed(256), or leave keyed out to handle one message of a lane at a time"
            )
        if self._subjects == ():
            raise TopologyError(
                "nats_subjects([]) is empty: give at least one subject, or leave it out"
            )
        shards = self._shards
        if shards is None:
            shards = 0 if self._failure is None else DEFAULT_SHARDS
        return Topology(
            queue=self.queue,
            holds=tuple(hold_queue(self.queue, seconds) for seconds in self._holds),
            dlq=_names.dlq_name(self.queue) if self._own_dlq else self._dlq,
            sequence_failure=self._failure,
            routing_shards=shards,
            keyed=self._keyed,
            allow_message_loss=self._allow_loss,
            stream_config=self._config,
            external=self._external,
            subjects=self._subjects or (),
        )
