"""The examples of key-value buckets and object stores, as a reader starts them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "jetstream"
# trio-asyncio subclasses a child watcher that CPython 3.14 removed; it warns from 3.12 on.
STRICT = ["-W", "error", "-W", "ignore::DeprecationWarning:trio_asyncio._loop"]

PRINTED = {
    "object_watch": """\
initial: config-1 12
update: config-2 ''
update: config-1 'updated config'
second config
""",
    "object_store": """\
readings 588890 bytes in 5 chunks
read 588890 bytes of mV
the same content: True
latest is copies/1
an object is not replaced by a link
deleted
['copies/1', 'latest']
sealed: True
""",
    "key_value": """\
somebody was faster
it is there already
theme.colour green 2
['blue', 'green']
initial: ['theme.colour']
update: theme.font PUT b'serif'
update: theme.colour DEL b''
expired: alice PURGE
gone
['sessions', 'settings'] ['other', 'theme.font']
""",
}


@pytest.mark.parametrize("name", sorted(PRINTED))
def test_it_prints_what_it_says(name: str) -> None:
    done = subprocess.run(
        [sys.executable, *STRICT, str(EXAMPLES / f"{name}.py")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout == PRINTED[name]
