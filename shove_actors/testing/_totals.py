"""What the simulations of this Python process have done."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(kw_only=True)
class Totals:
    """What simulations of this Python process have done so far."""

    simulations: int = 0
    #: By the server to a consumer. Not all of them reach a handler: what waits behind another
    #: message is given back or delivered again, and of a poisoned key nothing is handled.
    deliveries: int = 0
    handled: int = 0
    published: int = 0
    faults: int = 0
    crashes: int = 0
    processes: int = 0
    virtual_s: float = 0.0
    real_s: float = 0.0
    cpu_s: float = 0.0

    def add(self, other: Totals) -> None:
        """What another Python process has done at the same time: its real time is not added."""
        for each in fields(self):
            mine, theirs = getattr(self, each.name), getattr(other, each.name)
            setattr(self, each.name, max(mine, theirs) if each.name == "real_s" else mine + theirs)

    def __str__(self) -> str:
        rate = self.deliveries / self.cpu_s if self.cpu_s else 0.0
        return (
            f"{self.deliveries:,} deliveries ({self.handled:,} to a handler) in "
            f"{self.simulations:,} simulations, "
            f"{self.faults:,} faults, {self.crashes:,} of {self.processes:,} processes killed, "
            f"{self.virtual_s / 3600:,.1f} h of virtual time in {self.real_s:,.0f} s "
            f"({self.cpu_s:,.0f} s of CPU: {rate:,.0f} deliveries per second)"
        )


#: Printed at the end of a pytest session by `shove_actors.testing.pytest_plugin`.
TOTALS = Totals()
