"""Draws docs/img/scaling-*.svg from the simulation: `python docs/plots.py` (needs matplotlib)."""

from __future__ import annotations

import pathlib

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from shove_actors.cli._simulate import flights_by_minute
from shove_actors.runtime import AutoscalerConfig, ProportionalStrategy, ThresholdStrategy
from shove_actors.runtime._simulation import SHAPES, shape, simulate

IMG = pathlib.Path(__file__).parent / "img"
# The same file each time: no date, no random ids.
matplotlib.rcParams["svg.hashsalt"] = "shove_actors"


def draw(name: str, arrivals: list[int], service_s: float) -> None:
    figure, axes = plt.subplots(3, 1, sharex=True, figsize=(8, 4.5), layout="constrained")
    axes[0].plot(arrivals, color="0.4", linewidth=0.8)
    axes[0].set_ylabel("arrivals per s")
    for strategy, colour in ((ThresholdStrategy(), "C0"), (ProportionalStrategy(), "C1")):
        result = simulate(
            arrivals, AutoscalerConfig(strategy=strategy), consumers=(1, 10), service_s=service_s
        )
        at = [sample.at for sample in result.samples]
        label = type(strategy).__name__
        axes[1].plot(at, [s.pending for s in result.samples], colour, linewidth=1, label=label)
        axes[2].step(at, [s.consumers for s in result.samples], colour, linewidth=1)
    axes[1].set_ylabel("pending")
    axes[1].legend(frameon=False, fontsize=8)
    axes[2].set_ylabel("consumers")
    axes[2].set_xlabel("seconds")
    figure.suptitle(f"{name}, {service_s:g} s per message", fontsize=10)
    figure.savefig(IMG / f"scaling-{name}.svg", metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    IMG.mkdir(exist_ok=True)
    for shape_name in SHAPES:
        draw(shape_name, shape(shape_name), 1.0)
    draw("flights", flights_by_minute(2), 10.0)
