"""What an object store tells of an object: the record, and the JSON of all clients. Pure."""

from __future__ import annotations

import base64
import secrets
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from shove_actors._errors import BadObjectMeta, InvalidOption

from ._options import check_kind, check_text, encoded

#: One value per name, or several.
ObjectHeaders = Mapping[str, str | Sequence[str]]

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode
#: Go's zero time. The time that counts is the message's own; this one keeps Go able to read it.
_NO_TIME = "0001-01-01T00:00:00Z"
_KNOWN = frozenset(
    {
        "name",
        "description",
        "headers",
        "metadata",
        "options",
        "bucket",
        "nuid",
        "size",
        "mtime",
        "chunks",
        "digest",
        "deleted",
    }
)
_ID_LETTERS = string.digits + string.ascii_letters


def new_id() -> str:
    """A name for an object's chunks that nobody else has: 22 letters and digits, as elsewhere."""
    return "".join(secrets.choice(_ID_LETTERS) for _ in range(22))


def encoded_name(name: str) -> str:
    """An object's name as one word of a subject."""
    return base64.urlsafe_b64encode(encoded("the object's name", name)).decode()


def check_object_name(name: str, what: str = "name") -> str:
    """Raises `BadObjectMeta` for an empty one, `InvalidOption` for what is no text."""
    if not check_text(what, name):
        raise BadObjectMeta(f"the object's {what} is empty; give it one")
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectLink:
    """What a link points to. Without a `name`: a whole bucket."""

    bucket: str
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """An object, without its content.

    * `digest`: `SHA-256=` and the base64url of it. `chunks`, `chunk_size`: how it is stored.
    * `link`: it has no content of its own, see `ObjectStore.add_link`.
    * `deleted`: only its description is left.
    * `modified`: when this description was stored, by the server's clock.
    * `revision`: the sequence of this description in the bucket's stream; it grows with time.
    * `nuid`: names the content; another content has another one.
    """

    bucket: str
    name: str
    description: str = ""
    headers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    size: int = 0
    chunks: int = 0
    digest: str = ""
    nuid: str = ""
    deleted: bool = False
    link: ObjectLink | None = None
    chunk_size: int | None = None
    modified: datetime | None = None
    revision: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_link(self) -> bool:
        return self.link is not None

    def wire(self) -> bytes:
        """The JSON, with nats.go's names, order and omissions."""
        out: dict[str, Any] = {"name": self.name}
        if self.description:
            out["description"] = self.description
        if self.headers:
            out["headers"] = {name: list(values) for name, values in self.headers.items()}
        if self.metadata:
            out["metadata"] = dict(self.metadata)
        options = dict(self.extra.get("options") or {})
        if self.link is not None:
            link = {"bucket": self.link.bucket}
            options["link"] = {**link, "name": self.link.name} if self.link.name else link
        if self.chunk_size:
            options["max_chunk_size"] = self.chunk_size
        if options:
            out["options"] = options
        out |= {
            "bucket": self.bucket,
            "nuid": self.nuid,
            "size": self.size,
            "mtime": _NO_TIME,
            "chunks": self.chunks,
        }
        if self.digest:
            out["digest"] = self.digest
        if self.deleted:
            out["deleted"] = True
        return _encode({**{k: v for k, v in self.extra.items() if k != "options"}, **out})

    @classmethod
    def read(cls, data: bytes, *, modified: datetime | None, revision: int) -> ObjectInfo:
        """From the stored JSON, of whatever client. Raises `BadObjectMeta`."""
        try:
            raw = _decode(data)
            return cls._read(raw, modified, revision)
        except (msgspec.DecodeError, AttributeError, KeyError, TypeError, ValueError):
            raise BadObjectMeta(
                f"the object description of revision {revision} is not what a client writes"
            ) from None

    @classmethod
    def _read(cls, raw: Mapping[str, Any], modified: datetime | None, revision: int) -> ObjectInfo:
        options = dict(raw.get("options") or {})
        link = options.pop("link", None)
        chunk_size = options.pop("max_chunk_size", None)
        extra = {name: value for name, value in raw.items() if name not in _KNOWN}
        if options:
            extra["options"] = options
        name = raw["name"]
        if not isinstance(name, str) or not name:
            raise ValueError("an object has a name")
        return cls(
            bucket=str(raw.get("bucket") or ""),
            name=name,
            description=str(raw.get("description") or ""),
            headers=object_headers(raw.get("headers") or {}),
            metadata=dict(raw.get("metadata") or {}),
            size=int(raw.get("size") or 0),
            chunks=int(raw.get("chunks") or 0),
            digest=str(raw.get("digest") or ""),
            nuid=str(raw.get("nuid") or ""),
            deleted=bool(raw.get("deleted")),
            link=None if not link else ObjectLink(bucket=link["bucket"], name=link.get("name")),
            chunk_size=chunk_size or None,
            modified=modified,
            revision=revision,
            extra=extra,
        )


def object_headers(headers: ObjectHeaders) -> dict[str, tuple[str, ...]]:
    """Every name with its values. Raises `InvalidOption` for what is neither text nor texts."""
    check_kind("headers", headers, Mapping, "a mapping of names to strings")
    found: dict[str, tuple[str, ...]] = {}
    for name, value in headers.items():
        values = (value,) if isinstance(value, str) else value
        if (
            not isinstance(name, str)
            or not isinstance(values, (tuple, list))
            or not all(isinstance(one, str) for one in values)
        ):
            raise InvalidOption(f"headers: of {name!r}, give a string, or a list of strings")
        found[name] = tuple(values)
    return found


def object_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    """A copy. Raises `InvalidOption` for what is not text."""
    check_kind("metadata", metadata, Mapping, "a mapping of names to strings")
    for name, value in metadata.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidOption(f"metadata: of {name!r}, give a string; names are strings, too")
    return dict(metadata)
