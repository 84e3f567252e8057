"""`shove-actors doctor`: is this server fit for what it is to do?"""

from __future__ import annotations

import dataclasses
import textwrap

import click
import trio

from shove_actors import ConfigError, NatsConfig, ShoveError, jetstream

from ._base import Exit, connection_options, json_option, print_json, print_lines
from ._checkup import Finding, examine, own_versions
from ._monitor import look

#: Columns of the report; only what may be copied goes beyond.
WIDTH = 100
_MARKS = {"ok": "ok  ", "warn": "WARN", "fail": "FAIL", "unknown": "?   "}


@click.command(
    "doctor",
    epilog="Exit codes: 0 nothing failed; 1 something did, such as the connection; 2 wrong usage; "
    "4 with --strict, there are warnings.",
)
@connection_options()
@click.option(
    "--monitor",
    metavar="URL",
    help="The server's monitoring endpoint, such as http://127.0.0.1:8222: it tells what no "
    "client can see.",
)
@click.option("--strict", is_flag=True, help="Warnings make the exit code 4.")
@json_option
def command(config: NatsConfig, monitor: str | None, strict: bool, as_json: bool) -> int:
    """Look at a server, and say what to mend.

    Version and what it lacks, JetStream and its limits, clocks, storage, and how soon what was
    acknowledged is on the disk. What a client cannot see is marked with a question mark, with the
    way to find it out.
    """
    findings = trio.run(_examine, config, monitor)
    failed = any(finding.status == "fail" for finding in findings)
    warned = any(finding.status == "warn" for finding in findings)
    if as_json:
        print_json(
            {
                "ok": not failed,
                "warnings": warned,
                "findings": [finding.as_dict() for finding in findings],
            }
        )
    else:
        print_lines(*_report(findings))
    if failed:
        return Exit.FAILED
    return Exit.NOT_DONE if strict and warned else Exit.OK


async def _examine(config: NatsConfig, monitor: str | None) -> list[Finding]:
    monitored = None if monitor is None else await look(monitor)
    # Once: who asks what is wrong does not want to wait for it to be right.
    patient = dataclasses.replace(config, allow_reconnect=False)
    try:
        async with jetstream.connect(patient) as js:
            found = await examine(js, monitored)
    except ConfigError:
        raise  # what was typed is wrong, not the server
    except ShoveError as exc:
        found = [
            Finding(
                check="connection",
                status="fail",
                value=str(exc),
                meaning="nothing else could be looked at",
                fix="start the server (`shove-actors server` is one for development), or give its "
                "address with --url",
            )
        ]
    return [own_versions(), *found]


def _report(findings: list[Finding]) -> list[str]:
    width = max(len(finding.check) for finding in findings)
    lines = []
    for finding in findings:
        first = f"{_MARKS[finding.status]}  {finding.check:<{width}}  "
        indent = " " * len(first)
        # The first line as it is: there is something to copy in it.
        lines.append(f"{first}{finding.value}")
        if finding.meaning:
            lines += textwrap.wrap(
                finding.meaning, WIDTH, initial_indent=indent, subsequent_indent=indent
            )
        if finding.fix:
            lines += textwrap.wrap(
                f"-> {finding.fix}",
                WIDTH,
                initial_indent=indent,
                subsequent_indent=f"{indent}   ",
                break_long_words=False,
            )
    return lines
