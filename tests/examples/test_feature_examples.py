"""The examples of single features, as a reader starts them: whole output, nothing on the side."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
# trio-asyncio subclasses a child watcher that CPython 3.14 removed; it warns from 3.12 on.
STRICT = ["-W", "error", "-W", "ignore::DeprecationWarning:trio_asyncio._loop"]

PRINTED = {
    "basic": """\
stored as orders:1
stored as orders:2
stored as orders:3
published twice, a duplicate: True
handled ORD-1 over 9.50, sequence 1
handled ORD-2 over 20.00, sequence 2
handled ORD-3 over 3.25, sequence 3
handled ORD-4 over 1.00, sequence 4
ended in order: True
""",
    "retries": """\
the card machine is busy: RETRY, ACK, retries 1
the card machine is off: RETRY after half a second, ACK, retries 1
not before noon: DEFER, ACK, retries 0
the handler hangs: timed out, ACK, retries 1
the handler fails: raised, raised, raised, dead: max_retries_exceeded, OSError
nobody wants it: dead: rejected, out of stock
""",
    "ledger": """\
ada: 20 entries, in order: True, 2190
grace: 20 entries, in order: True, 2190
edsger: 20 entries, in order: True, 2190
""",
    "fail_all": """\
no overdraft:
  dead: ada -200, rejected
  dead: ada +150, sequence_failed
  dead: ada -50, sequence_failed
  balances {'ada': 100, 'grace': 100}
ada waits: entry 3 was rejected, overdrawn
an overdraft of 100, the dead letters first, in their order:
  ada -200, which was a dead letter
  ada +150, which was a dead letter
  ada -50, which was a dead letter
  balances {'ada': 1, 'grace': 100}
poisoned: 0
""",
    "scaling": """\
four consumers work: 4
from 1 to 4 and back to 1
both worked: True, twice: 0, at once: 4
""",
    "external_stream": """\
topic 'prices' uses an external stream, but there is no stream of that name
tea costs 3.5
bread costs 2.0
dead: 'not for machines', undecodable
their stream is as it was: True
streams: prices, prices-dlq, prices-hold-1s
""",
    "tls": """\
handled tea, in secret
an authority that did not issue it: refused
no certificate of our own: refused
nats:// and TLS options: refused
""",
    "kv_watch": """\
tea: 3.50
tea: 4.00
bread: no price, later
bread: 2.20
tea: no price, later
prices of tea so far: 3.50, 4.00
""",
    "object_store": """\
too large for a message
stored in 31 chunks
ada: the archive is busy; the message waits, not the content
ada: 4,000,000 bytes, as they were: True
objects left: 0
""",
    "dlq_replay": """\
ada 1: rejected, the bank is closed
ada 2: rejected, the bank is closed
ada 3: rejected, the bank is closed
grace 2: rejected, the bank is closed
grace 3: rejected, the bank is closed
would be replayed: 3
replayed: 3, none had to stay: True
handled now, in the order of the account: [1, 2, 3]
thrown away: 2, left: 0
""",
    "flights": """\
2,000 flights of 1,134 aircraft, in order per aircraft: True
most of one aircraft: 8 (N730MQ)
17 never departed, and are dead letters: True
""",
    "actors_alone": """\
first answer: 1
it died of it: a word that I cannot count
next incarnation: 1
system: running, restarts 0
  counter: running, restarts 1
""",
    "tracing": """\
checkout
    publish orders
        handle orders  -> retry
            charge the card
            hop orders-hold-500ms
                handle orders  -> reject
                    charge the card
                    hop orders-dlq
                        handle orders-dlq  -> ack
traces: 1
""",
}

pytestmark = pytest.mark.server


def run(name: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("NATS_")}
    return subprocess.run(
        [sys.executable, *STRICT, str(EXAMPLES / f"{name}.py")],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("name", sorted(PRINTED))
def test_it_prints_what_it_says(name: str) -> None:
    done = run(name)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == PRINTED[name]


def test_stress() -> None:
    done = run("stress")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [
        f"{handler}, consumers {consumers}, prefetch 20: 400 of 400, at least 20 a second: True"
        for handler in ("zero", "fast")
        for consumers in (1, 4)
    ]
    measured = done.stderr.splitlines()
    assert len(measured) == 4
    number = r"[\d,]+"
    times = ", ".join(rf"{share} {number} ms" for share in ("p50", "p95", "p99", "max"))
    assert all(re.fullmatch(rf"  {number} a second; end to end {times}", line) for line in measured)


def test_orders() -> None:
    """Two consumers: each order has its own story, and which of two is told first is open."""
    done = run("orders")
    assert (done.returncode, done.stderr) == (0, "")
    stored, rest = done.stdout.splitlines()[:5], done.stdout.splitlines()[5:]
    assert stored == [f"ORD-{n} is stored as orders:{n}" for n in range(1, 6)]
    assert sorted(rest) == [
        "ORD-1: paid 9.50, retries 0",
        "ORD-2: dead: rejected (a negative amount)",
        "ORD-3: paid 20.00, retries 1",
        "ORD-3: the payment service does not answer; again in a second",
        "ORD-4: paid 3.25, retries 0",
        "ORD-5: paid 100.00, retries 0",
    ]


def test_audited() -> None:
    done = run("audited")
    assert done.returncode == 0, done.stderr
    first, *records = done.stdout.splitlines()
    assert first == "the audit is down for a moment: ORD-3 will be handled again"
    facts = [
        re.fullmatch(r"(ORD-\d)  (\w+) +\((\w+)\) +[\d.]+ ms  retries (\d)  trace (\w{8})", line)
        for line in records
    ]
    assert sorted(match.groups()[:4] for match in facts if match is not None) == [
        ("ORD-1", "ack", "outcome", "0"),
        ("ORD-2", "ack", "outcome", "1"),
        ("ORD-2", "retry", "timeout", "0"),
        ("ORD-3", "ack", "outcome", "0"),
    ]
    assert len({match[5] for match in facts if match is not None}) == 3
    # What an operator would read of it.
    assert "timed out after 0.5 s" in done.stderr
    assert "could not be written (RuntimeError)" in done.stderr


def test_metrics() -> None:
    done = run("metrics")
    assert (done.returncode, done.stderr) == (0, "")
    found = {
        re.sub(r'otel_scope_\w+="[^"]*",', "", name): float(value)
        for name, _, value in (line.rpartition(" ") for line in done.stdout.splitlines())
    }
    consumed = 'shove_messages_consumed_total{consumer_group="orders-consumer",outcome="%s",'
    consumed += 'topic="orders"}'
    counted = {outcome: found[consumed % outcome] for outcome in ("ack", "retry", "reject")}
    assert counted == {"ack": 196, "retry": 20, "reject": 4}
    assert found['shove_messages_published_total{outcome="success",topic="orders"}'] == 200


def test_jetstream_alone() -> None:
    done = run("jetstream_alone")
    assert (done.returncode, done.stderr) == (0, "")
    lines = [*(rf"stored: EVENTS {n}" for n in (1, 2, 3)), r"EVENTS holds 3 messages, \d+ bytes"]
    lines.append(r"events\.1 b'number 1'")
    assert re.fullmatch("\n".join(lines) + "\n", done.stdout)


def test_a_stress_that_is_too_slow_is_exit_code_1(tmp_path: Path) -> None:
    source = (EXAMPLES / "stress.py").read_text(encoding="utf-8")
    changed = source.replace("LEAST_PER_SECOND = 20", "LEAST_PER_SECOND = 10_000_000")
    changed = changed.replace('"--messages", "400"', '"--memory", "--messages", "20"')
    assert changed.count("10_000_000") == changed.count("--memory") == 1
    (tmp_path / "stress.py").write_text(changed, encoding="utf-8")
    done = run(str(tmp_path / "stress"))
    assert done.returncode == 1
    assert done.stdout.count("at least 10000000 a second: False") == 4
