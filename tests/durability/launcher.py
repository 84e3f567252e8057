"""Starts the processes of `child.py`, signals them, and sees how they ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

from tests.support import wait_until

from .plan import Plan

ROOT = Path(__file__).parents[2]
#: For what should happen at once: long enough for a busy machine.
SOON_S = 20.0


class Child:
    """One process, from its plan to its exit status."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    @property
    def exit_code(self) -> int | None:
        """None while it runs; minus a signal's number when that ended it."""
        try:
            return int(self.plan.path(".exit").read_text())
        except FileNotFoundError:
            return None

    @property
    def reasons(self) -> str:
        return self.plan.path(".outcome").read_text(encoding="utf-8")

    @property
    def log(self) -> str:
        path = self.plan.path(".log")
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def signal(self, number: signal.Signals) -> None:
        """Harmless once it has ended."""
        if self.exit_code is None:
            os.kill(int(self.plan.path(".pid").read_text()), number)

    async def ended(self, timeout: float = SOON_S) -> int:
        """Its exit status, once it has one."""
        try:
            await wait_until(lambda: self.exit_code is not None, timeout)
        except AssertionError as exc:
            raise AssertionError(f"{self.plan.name} still runs; its log:\n{self.log}") from exc
        code = self.exit_code
        assert code is not None
        return code

    async def killed_itself(self) -> None:
        code = await self.ended()
        assert code == -signal.SIGKILL, f"it ended with {code}; its log:\n{self.log}"

    async def kill(self) -> None:
        self.signal(signal.SIGKILL)
        assert await self.ended() == -signal.SIGKILL, self.log


class Launcher:
    """A running `python -m tests.durability.child`."""

    def __init__(self, log: Path) -> None:
        with log.open("wb") as sink:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.durability.child"],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=sink,
                stderr=sink,
            )
        self.children: list[Child] = []

    async def start(self, plan: Plan) -> Child:
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(plan) + b"\n")
        self._process.stdin.flush()
        child = Child(plan)
        self.children.append(child)
        await wait_until(plan.path(".pid").exists, SOON_S, message=f"{plan.name} did not start")
        return child

    def close(self) -> None:
        """Kills what still runs."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(SOON_S)
