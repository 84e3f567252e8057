"""What the simulations of this Python process have done."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(kw_only=True)
class Totals:
    """What simulations of this Python process have done so far."""

    simulations: int = 0
    deliveries: int = 0
    published: int = 0
    faults: int = 0
    crashes: int = 0
    processes: int = 0
    virtual_s: float = 0.0
    real_s: float = 0.0
    cpu_s: float = 0.0

    def __str__(self) -> str:
        rate = self.deliveries / self.cpu_s if self.cpu_s else 0.0
        return (
            f"{self.deliveries:,} deliveries in {self.simulations:,} simulations, "
            f"{self.faults:,} faults, {self.crashes:,} of {self.processes:,} processes killed, "
            f"{self.virtual_s / 3600:,.1f} h of virtual time in {self.real_s:,.0f} s "
            f"({self.cpu_s:,.0f} s of CPU: {rate:,.0f} deliveries per second)"
        )


#: Printed at the end of a pytest session by `shove_actors.testing.pytest_plugin`.
TOTALS = Totals()


#: Printed at the end of a pytest session by `shove_actors.testing.pytest_plugin`.
TOTALS = Totals()
