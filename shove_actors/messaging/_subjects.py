"""NATS subjects: which are well formed, which match, which overlap.

A subject is a row of tokens between dots. In a pattern `*` stands for exactly one token and a
last `>` for one or more.
"""

from __future__ import annotations

from shove_actors._errors import TopologyError

from ._names import shown

# The protocol line that carries a subject has to fit 4096 bytes together with its reply subject.
MAX_SUBJECT_BYTES = 1024

# What no stream of ours may capture. The server refuses an overlap with the first two; messages
# captured from `_INBOX` would be other clients' replies, which it does not refuse.
_SERVER_SPACES = ("$JS.>", "$SYS.>", "_INBOX.>")


def subject_problem(subject: object, *, wildcards: bool) -> str | None:
    """Why `subject` is malformed, or None. `wildcards` says whether patterns are allowed."""
    if not isinstance(subject, str):
        return f"must be a str, not {type(subject).__name__}"
    if not subject:
        return "is empty"
    if not (subject.isascii() and subject.isprintable()) or " " in subject:
        return "may hold printable ASCII without spaces only"
    if len(subject) > MAX_SUBJECT_BYTES:
        return f"has {len(subject)} bytes, more than {MAX_SUBJECT_BYTES}"
    tokens = subject.split(".")
    if "" in tokens:
        return "has an empty token (a leading, trailing or double '.')"
    for index, token in enumerate(tokens):
        if token in ("*", ">"):
            if not wildcards:
                return "must be literal, without '*' or '>'"
            if token == ">" and index != len(tokens) - 1:
                return "may have '>' as its last token only"
        elif "*" in token or ">" in token:
            # The server takes `a*` as a literal token. Nobody who writes it means that.
            return f"has a wildcard inside the token {shown(token)}: a wildcard is a whole token"
    return None


def check_pattern(subject: str) -> None:
    """Refuses what a stream of ours cannot bind, with a `TopologyError`."""
    problem = subject_problem(subject, wildcards=True)
    if problem is not None:
        name = shown(subject) if isinstance(subject, str) else "of nats_subjects"
        raise TopologyError(f"subject {name} {problem}: correct it in nats_subjects([...])")
    for space in _SERVER_SPACES:
        if overlap(subject, space):
            raise TopologyError(
                f"subject {shown(subject)} overlaps {space}, which belongs to the server and its "
                "clients: begin it with a literal token of your own"
            )


def is_literal(subject: str) -> bool:
    """Whether a well-formed subject has no wildcard."""
    return "*" not in subject and ">" not in subject


def matches(pattern: str, subject: str) -> bool:
    """Whether the literal `subject` is one that `pattern` stands for."""
    wanted = pattern.split(".")
    given = subject.split(".")
    for index, token in enumerate(wanted):
        if token == ">":
            return len(given) > index
        if index == len(given) or token not in ("*", given[index]):
            return False
    return len(wanted) == len(given)


def overlap(one: str, other: str) -> bool:
    """Whether some literal subject matches both patterns."""
    left = one.split(".")
    right = other.split(".")
    # `zip` alone is not enough for `>`: it needs a token of the other side, and has one exactly
    # when zip still yields a pair at its index.
    for a, b in zip(left, right, strict=False):
        if ">" in (a, b):
            return True
        if a != b and "*" not in (a, b):
            return False
    return len(left) == len(right)
