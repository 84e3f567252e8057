"""What all commands share: exit codes, number types, how to reach a server, how JSON is printed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

import shove_actors
from shove_actors._errors import ShoveError

from ._output import write_lines

DEFAULT_URL: Final = "nats://127.0.0.1:4222"

F = TypeVar("F", bound=Callable[..., Any])

if TYPE_CHECKING:
    _IntType = click.ParamType[int]
    _FloatType = click.ParamType[float]
else:  # generic from click 8.5 on
    _IntType = _FloatType = click.ParamType


class Exit(IntEnum):
    """What a command exits with. Each says in its `--help` which of these, and why."""

    OK = 0
    FAILED = 1
    USAGE = 2
    DRAIN_TIMEOUT = 3
    NOT_DONE = 4
    INTERRUPTED = 130
    OUTPUT_CLOSED = 141


class CommandFailed(ShoveError):
    """A command cannot go on. The message is the line that is printed, `code` the exit code."""

    def __init__(self, text: str, code: int = Exit.FAILED) -> None:
        super().__init__(text)
        self.code = code


class _Positive(_IntType):
    name = "N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        number = int(text) if text.isdecimal() else 0
        if number < 1:
            self.fail(f"{text!r} is not a whole number above 0", param, ctx)
        return number


class _NotNegative(_FloatType):
    name = "S"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not 0 <= number < 1e9:
            self.fail(f"{str(value)!r} is not a number of at least 0", param, ctx)
        return number


_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class _Age(_FloatType):
    name = "AGE"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        text = str(value).strip()
        number = text.rstrip("abcdefghijklmnopqrstuvwxyz")
        unit = _UNITS.get(text[len(number) :] or "s")
        try:
            seconds = float(number) * unit if unit is not None else -1.0
        except ValueError:
            seconds = -1.0
        if not 0 <= seconds < 1e10:
            self.fail(
                f"{text!r} is no age: write a number with ms, s, m, h or d, as 90s", param, ctx
            )
        return seconds


POSITIVE: Final = _Positive()
NOT_NEGATIVE: Final = _NotNegative()
AGE: Final = _Age()

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


def connection_options(*, otherwise: str = DEFAULT_URL) -> Callable[[F], F]:
    """`--url` and who we are there. The command gets `config`, a `NatsConfig`.

    `otherwise`: what the help says that is used without `--url` and `$NATS_URL`.
    """

    def decorate(function: F) -> F:
        def with_config(
            *args: Any,
            url: str,
            creds: Path | None,
            ca: Path | None,
            cert: Path | None,
            key_file: Path | None,
            **rest: Any,
        ) -> Any:
            context = click.get_current_context()
            # Fetched when it is asked for: it loads the whole client.
            config = shove_actors.NatsConfig(
                url,
                name=f"shove-actors {context.info_name}",
                creds_file=creds,
                tls_ca_cert=ca,
                tls_client_cert=cert,
                tls_client_key=key_file,
            )
            return function(*args, config=config, **rest)

        with_config.__name__ = function.__name__
        with_config.__doc__ = function.__doc__
        with_config.__click_params__ = getattr(  # type: ignore[attr-defined]
            function, "__click_params__", []
        )
        file = click.Path(dir_okay=False, path_type=Path)
        url_option = click.option(
            "--url",
            default=DEFAULT_URL,
            envvar="NATS_URL",
            help=f"Of the NATS server; default $NATS_URL or {otherwise}.",
        )
        for option in (
            click.option("--key-file", type=file, help="Key of --cert."),
            click.option("--cert", type=file, help="Our certificate, for a tls:// URL."),
            click.option(
                "--ca", type=file, envvar="NATS_CA", help="Authorities, for a tls:// URL."
            ),
            click.option("--creds", type=file, envvar="NATS_CREDS", help="Credentials file."),
            url_option,
        ):
            option(with_config)
        return with_config  # type: ignore[return-value]

    return decorate


def kind_of(value: object) -> str:
    """`an int`, `a Topic`."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def print_json(value: object) -> None:
    """One JSON document on standard output."""
    write_lines(sys.stdout, [json.dumps(value, indent=2, ensure_ascii=False)])


def print_lines(*lines: str) -> None:
    write_lines(sys.stdout, lines)


def table(
    header: tuple[str, ...], rows: Sequence[tuple[str, ...]], *, right: str = ""
) -> list[str]:
    """Columns with two blanks between them. `right`: an `r` for each column of numbers."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    sides = right.ljust(len(header), "l")

    def line(cells: tuple[str, ...]) -> str:
        padded = [
            cell.rjust(width) if side == "r" else cell.ljust(width)
            for cell, width, side in zip(cells, widths, sides, strict=True)
        ]
        return "  ".join(padded).rstrip()

    return [line(header), *(line(row) for row in rows)]
