"""Names of one actor system: name to ref. No globals, no context variables.

A name belongs to the slot, so it stays over restarts and goes when the slot ends for good.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shove_actors._errors import ActorGone, NameTaken

if TYPE_CHECKING:
    from ._ref import ActorRef


class Registry:
    """Unique names to refs."""

    def __init__(self) -> None:
        self._refs: dict[str, ActorRef[Any]] = {}
        # The other way round, so that the end of an actor does not search all names.
        self._names: dict[ActorRef[Any], set[str]] = {}

    def register(self, name: str, ref: ActorRef[Any]) -> None:
        """Give `ref` a name until its slot ends.

        Raises `NameTaken` if another slot has it, `ActorGone` if the slot has ended already.
        """
        if ref.ended:
            raise ActorGone(f"cannot register {name!r}: actor {ref.path!r} has ended.")
        holder = self._refs.get(name)
        if holder is not None and holder is not ref:
            raise NameTaken(
                f"name {name!r} belongs to actor {holder.path!r}: names are unique within one "
                "system. Choose another name, or stop that actor first."
            )
        self._refs[name] = ref
        self._names.setdefault(ref, set()).add(name)

    def unregister(self, name: str) -> None:
        """Free a name. Unknown names are ignored."""
        ref = self._refs.pop(name, None)
        if ref is not None:
            self._names[ref].discard(name)

    def whereis(self, name: str) -> ActorRef[Any] | None:
        """The ref that has this name, or None."""
        return self._refs.get(name)

    def forget(self, ref: ActorRef[Any]) -> None:
        """Free every name of a slot that has ended."""
        for name in self._names.pop(ref, ()):
            del self._refs[name]
