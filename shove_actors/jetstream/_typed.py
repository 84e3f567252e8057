"""Whether the fields of a record hold what their annotations say.

A wrong type would otherwise show late and elsewhere: as a `TypeError` of an encoder that names no
field, or as the server's refusal of a whole configuration. Checked when the record is made, so that
nothing of it was sent.

The words of a `Literal` are not compared: records are made of what the server says, too, and a
newer server may have one more. It refuses what it does not know.
"""

from __future__ import annotations

import collections.abc
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from datetime import datetime
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from shove_actors._errors import InvalidOption

#: Whether a value fits, and what to give, in words.
Rule = tuple[Callable[[object], bool], str]

_UNIONS = (Union, types.UnionType)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_PLAIN: dict[object, Rule] = {
    Any: (lambda value: True, "anything"),
    type(None): (lambda value: value is None, "None"),
    bool: (lambda value: isinstance(value, bool), "True or False"),
    int: (_is_int, "a whole number"),
    # Every one in a configuration is a duration.
    float: (_is_number, "a number of seconds"),
    str: (lambda value: isinstance(value, str), "a string"),
    datetime: (lambda value: isinstance(value, datetime), "a datetime"),
}
_SEVERAL = {str: "strings", float: "numbers of seconds", int: "whole numbers", Any: "values"}


def _rule(hint: Any) -> Rule:
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return _PLAIN[str][0], " or ".join(repr(arg) for arg in args)
    if origin in _UNIONS:
        rules = [_rule(arg) for arg in args]
        return (
            lambda value: any(fits(value) for fits, _ in rules),
            " or ".join(words for _, words in rules),
        )
    if origin is tuple and args[-1] is not Ellipsis:
        each = [_rule(arg) for arg in args]
        return (
            lambda value: (
                isinstance(value, tuple)
                and len(value) == len(each)
                and all(fits(item) for (fits, _), item in zip(each, value, strict=True))
            ),
            f"a tuple of {', '.join(words for _, words in each)}",
        )
    if origin in (tuple, collections.abc.Sequence):
        of, words = _rule(args[0])[0], _SEVERAL.get(args[0], f"{_name(args[0])} objects")
        return (
            lambda value: (
                isinstance(value, collections.abc.Sequence)
                and not isinstance(value, (str, bytes))
                and all(map(of, value))
            ),
            f"a list of {words}",
        )
    if origin is collections.abc.Callable:
        return callable, "a function"
    if origin in (dict, collections.abc.Mapping):
        of, words = _rule(args[1])[0], _SEVERAL.get(args[1], f"{_name(args[1])} objects")
        return (
            lambda value: (
                isinstance(value, Mapping)
                and all(isinstance(key, str) and of(item) for key, item in value.items())
            ),
            f"a mapping of names to {words}",
        )
    return lambda value: isinstance(value, hint), f"a {_name(hint)}"


def _name(hint: Any) -> str:
    return str(getattr(hint, "__name__", hint))


@cache
def _rules(kind: Any) -> tuple[tuple[str, Callable[[object], bool], str], ...]:
    hints = get_type_hints(kind)
    return tuple((name, *_rule(hint)) for name, hint in hints.items())


@cache
def _defaults(kind: Any) -> Mapping[str, object]:
    return {item.name: item.default for item in fields(kind)}


def check_fields(record: object) -> None:
    """For `__post_init__`: every field is of its declared type. Raises `InvalidOption`."""
    kind: Any = type(record)
    defaults = _defaults(kind)
    for name, fits, words in _rules(kind):
        value = getattr(record, name)
        if value is not defaults[name] and not fits(value):
            raise wrong_type(name, value, words)


@cache
def _by_name(kind: Any) -> Mapping[str, Rule]:
    return {name: (fits, words) for name, fits, words in _rules(kind)}


def check_settings(kind: type, settings: Mapping[str, object]) -> None:
    """The same for keyword arguments that a `TypedDict` declares; what it does not know is a
    `TypeError`, as of any function."""
    if not settings:
        return
    known = _by_name(kind)
    for name, value in settings.items():
        rule = known.get(name)
        if rule is None:
            raise TypeError(f"got an unexpected keyword argument {name!r}")
        if not rule[0](value):
            raise wrong_type(name, value, rule[1])


def wrong_type(name: str, value: object, words: str) -> InvalidOption:
    """What is wrong, without showing the value."""
    given = "None" if value is None else f"of type {type(value).__name__}"
    if isinstance(value, Mapping):
        given = f"of type {type(value).__name__} with other content"
    elif isinstance(value, (list, tuple)) and words.startswith("a list"):
        given = f"a {type(value).__name__} of something else"
    return InvalidOption(f"{name} is {given}; give {words}")


def listed(value: object) -> object:
    """What people write for several things, as a tuple. A string is no list of its letters."""
    if isinstance(value, (str, bytes, bytearray, Mapping)) or not isinstance(value, Iterable):
        return value
    return tuple(value)
