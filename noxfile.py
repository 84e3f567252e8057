"""The one entry point for every check: `nox -s NAME`, or `nox` for lint, typing and tests.

The supported Python versions have one source, the classifiers in pyproject.toml. A session that
runs on all of them skips the interpreters that this machine does not have.

What comes after `--` goes to the tool: `nox -s tests -- tests/actors -x`.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator
from typing import Any

import nox

ROOT = pathlib.Path(__file__).resolve().parent
PYTHONS = nox.project.python_versions(nox.project.load_toml("pyproject.toml"))

nox.options.sessions = ["lint", "typing", "tests"]
# A missing interpreter is skipped, in CI as well; none is ever downloaded behind one's back.
nox.options.error_on_missing_interpreters = False
nox.options.download_python = "never"

DOCKER_IMAGE = "nats:latest"
OLD_SERVER = "SHOVE_OLD_NATS_SERVER"
NO_DOCKER = "no Docker engine answers; nothing was run (`-- --url nats://HOST:PORT` needs none)"
#: What `nox -s docker` exits with then: EX_UNAVAILABLE of sysexits.h, which no test run returns.
NO_DOCKER_EXIT = 69


@nox.session
def demo(session: nox.Session) -> None:
    """The demonstration, as a user installs it."""
    session.install(".[demo]")
    session.run("python", "-m", "shove_actors", "demo", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Tests on the interpreter that runs nox."""
    _pytest(session)


@nox.session(python=PYTHONS)
def tests_all(session: nox.Session) -> None:
    """Tests on every supported Python; `nox -s tests_all-3.13` for one of them."""
    _pytest(session)


def _pytest(session: nox.Session) -> None:
    session.install("-e", ".[test]")
    session.run("python", "-m", "pytest", *(session.posargs or ["tests"]))


@nox.session
def properties(session: nox.Session) -> None:
    """Properties; the first argument may be a profile: `nox -s properties -- deep`."""
    args = list(session.posargs)
    profile = args.pop(0) if args and args[0] in ("dev", "ci", "deep") else "ci"
    session.install("-e", ".[test]")
    # The Hypothesis profiles and the Trio hook live in tests/conftest.py, which pytest reads by
    # itself only for what lies under tests/.
    session.run(
        # One more process than this is meant for has cores: those on a real server mostly wait.
        "python", "-m", "pytest", "-m", "", "-n", "3", "-p", "tests.conftest",
        *(args or ["properties"]),
        env={"HYPOTHESIS_PROFILE": profile},
    )  # fmt: skip


@nox.session
def planted(session: nox.Session) -> None:
    """Defects planted into the real code, one at a time: each has to be noticed.

    `nox -s planted -- --only mover-moves-early` for one, `-- --list` for their names.
    """
    session.install("-e", ".[test]")
    session.run("python", "-m", "properties.planted", *session.posargs)


@nox.session
def coverage(session: nox.Session) -> None:
    """Lines and branches of the actors that their own tests run: all of them, or it fails."""
    session.install("-e", ".[dev]")
    session.run(
        "python", "-m", "pytest", "tests/actors", "--cov=shove_actors.actors", "--cov-branch",
        "--cov-report=term-missing:skip-covered", "--cov-fail-under=100", *session.posargs,
        env={"COVERAGE_FILE": str(_scratch(session) / "coverage")},
    )  # fmt: skip


@nox.session
def mutation(session: nox.Session) -> None:
    """Changes the actors' decisions one by one (`mutation.toml`); who survives has no test.

    Works on a copy, takes an hour or so of one core, and is not part of CI. Ends with the
    survivors: each needs a test, or a reason why the change changes nothing.
    """
    session.install(".[test]", "cosmic-ray>=8.4")
    session.run("python", "-m", "pip", "uninstall", "-q", "-y", "shove-actors")
    copy = _scratch(session) / "tree"
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()
    for name in ("shove_actors", "tests"):
        shutil.copytree(ROOT / name, copy / name)
    for name in ("pyproject.toml", "mutation.toml"):
        shutil.copy2(ROOT / name, copy / name)
    session.chdir(copy)
    session.run("cosmic-ray", "init", "mutation.toml", "mutants.sqlite")
    session.run("cr-filter-operators", "mutants.sqlite", "mutation.toml")
    # A mutant of the same size written in the same second would be taken for the one before.
    env = {"PYTHONDONTWRITEBYTECODE": "1", "HYPOTHESIS_PROFILE": "dev"}
    session.run("cosmic-ray", "baseline", "mutation.toml", env=env)
    session.run("cosmic-ray", "exec", "mutation.toml", "mutants.sqlite", env=env)
    session.run("cr-report", "--surviving-only", "--show-diff", "mutants.sqlite")


@nox.session
def lint(session: nox.Session) -> None:
    """Style, formatting, and the floors: imports go down only."""
    session.install("-e", ".[dev]")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("lint-imports")


@nox.session
def typing(session: nox.Session) -> None:
    """`mypy --strict` on the package, and on the file that uses every public signature."""
    session.install("-e", ".[dev]")
    session.run("mypy", "--strict")
    api = ROOT / "tests" / "typing" / "api.py"
    if api.exists():
        session.run("mypy", "--strict", str(api.relative_to(ROOT)))


@nox.session
def examples(session: nox.Session) -> None:
    """Every run that a script in examples/ declares near its top, each on a line of its own.

    `# runnable` is a run without arguments, `# runnable: --kill-something --seed 1` one with them.
    Then the tests of what they print, slow ones included.
    """
    folder = ROOT / "examples"
    scripts = [*sorted(folder.glob("*.py")), *sorted((folder / "jetstream").glob("*.py"))]
    runs = [(path, args) for path in scripts for args in _runs(path)]
    if not runs:
        session.skip("no script in examples/ is marked runnable")
    session.install(".[test]")
    for path, args in runs:
        session.run("python", str(path.relative_to(ROOT)), *args)
    session.run("pytest", "-m", "", "tests/examples")


def _runs(path: pathlib.Path) -> list[list[str]]:
    """The arguments of each run that this script declares."""
    head = path.read_text(encoding="utf-8").splitlines()[:20]
    declared = [line.strip().partition(":") for line in head]
    return [shlex.split(args) for marker, _, args in declared if marker == "# runnable"]


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation, built strictly: a broken link fails. `-- serve` to read it."""
    session.install(".[docs]")
    if session.posargs:
        session.run("mkdocs", *session.posargs)
        return
    session.run("mkdocs", "build", "--strict", "--site-dir", str(_scratch(session) / "site"))


@nox.session
def docker(session: nox.Session) -> None:
    """The server tests against NATS in Docker, on a loopback port that Docker chooses.

    `SHOVE_DOCKER_IMAGE` names another image. `-- --url nats://HOST:PORT` takes a server that runs
    already, with JetStream, whose streams the tests may make and delete; no Docker then. Without
    an engine nothing is run, and nox exits with 69.
    """
    args = list(session.posargs)
    if args[:1] == ["--url"] and len(args) > 1:
        _against(session, args[1], args[2:])
        return
    if not _docker_answers():
        session.warn(NO_DOCKER)
        sys.exit(NO_DOCKER_EXIT)
    with _nats_in_docker(os.environ.get("SHOVE_DOCKER_IMAGE") or DOCKER_IMAGE) as url:
        _against(session, url, args)


def _against(session: nox.Session, url: str, args: list[str]) -> None:
    session.install("-e", ".[test]")
    before = _greeting(url)["client_id"]
    # One at a time: some tests look at all that is asked of the server, which they share here.
    session.run(
        "python", "-m", "pytest", "-n", "0", "-m", "server and not slow", *(args or ["tests"]),
        env={"SHOVE_TEST_NATS_URL": url},
    )  # fmt: skip
    # Green against a server of the tests' own would prove nothing about this one.
    if _greeting(url)["client_id"] == before + 1:
        session.error(f"the tests passed without connecting to {url}")


#: What touches each dependency: trio, msgspec, pydantic, nats-py, trio-asyncio, nkeys, trustme,
#: click and rich, OpenTelemetry, Hypothesis, anyio and Hypercorn. A few minutes of two cores.
LOWEST_TESTS = [
    "tests/test_exports.py", "tests/test_lazy_import.py", "tests/messaging", "tests/actors",
    "tests/telemetry", "tests/examples/test_embedding.py",
    "tests/backends/test_memory_conformance.py", "tests/backends/test_nats_conformance.py",
    "tests/jetstream/test_connection.py", "tests/jetstream/test_credentials.py",
    "tests/jetstream/test_tls_auth.py", "tests/runtime/test_worker.py",
    "tests/testing/test_simulation.py", "tests/cli/test_app.py", "tests/cli/test_output.py",
    "tests/cli/test_screen.py",
    # Faults are not about versions, and take half of the time.
    "-k", "not bad_day",
]  # fmt: skip


@nox.session(python=PYTHONS[0])
def lowest(session: nox.Session) -> None:
    """On the oldest Python, with the oldest version of each package that pyproject.toml allows.

    Runs what touches each of them; `nox -s lowest -- tests` for everything.
    """
    session.install("uv")
    # pip always takes the newest; uv's resolver is the one that can be asked for the oldest.
    session.run(
        "uv", "pip", "install", "-q", "--python", session.virtualenv.location,
        "--resolution", "lowest-direct", "-e", ".[test]",
    )  # fmt: skip
    session.run("uv", "pip", "list", "--python", session.virtualenv.location)
    session.run("python", "-m", "pytest", *(session.posargs or LOWEST_TESTS))


@nox.session
def package(session: nox.Session) -> None:
    """Wheel and sdist as they would be published, and a newcomer's first minutes with the wheel."""
    session.install("build", "twine", "check-wheel-contents")
    scratch = _scratch(session)
    shutil.rmtree(scratch, ignore_errors=True)
    dist = scratch / "dist"
    # By way of the sdist: what it lacks, the wheel lacks.
    session.run("python", "-m", "build", "--outdir", str(dist), str(ROOT))
    files = sorted(str(path) for path in dist.iterdir())
    session.run("twine", "check", "--strict", *files)
    wheel = next(name for name in files if name.endswith(".whl"))
    session.run("check-wheel-contents", wheel)
    session.install("--force-reinstall", "--no-deps", wheel)
    session.install(f"{wheel}[server,demo]")
    empty = scratch / "empty"
    empty.mkdir()
    program = "\n".join(_first_python_block(ROOT / "docs" / "first-message.md"))
    (empty / "first.py").write_text(program + "\n", encoding="utf-8")
    session.chdir(empty)
    lines = [line for line in program.splitlines() if line.strip()]
    session.log(f"the newcomer's program has {len(lines)} lines")
    session.run("python", "first.py")
    session.run("python", "-m", "shove_actors", "demo", "--plain")
    session.run(
        "python", "-c",
        "import importlib.resources as r; assert r.files('shove_actors').joinpath('py.typed')",
    )  # fmt: skip


def _first_python_block(page: pathlib.Path) -> list[str]:
    lines = page.read_text(encoding="utf-8").splitlines()
    start = lines.index("```python") + 1
    return lines[start : lines.index("```", start)]


@nox.session
def old_server(session: nox.Session) -> None:
    """What an old nats-server can do: all of the backend, or an error that names the version.

    `SHOVE_OLD_NATS_SERVER` names its executable; otherwise Debian's package is fetched with
    `apt-get download`, unpacked and not installed. Where neither is to be had, nothing is run.
    """
    binary = os.environ.get(OLD_SERVER) or _debian_server(_scratch(session))
    if binary is None:
        why = f"{OLD_SERVER} is not set, and apt-get has no nats-server; nothing was run"
        session.log(why)
        session.skip(why)
    version = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=20)
    session.log(version.stdout.strip())
    session.install("-e", ".[test]")
    session.run(
        "python", "-m", "pytest", *(session.posargs or ["tests/old_server"]),
        env={OLD_SERVER: str(binary)},
    )  # fmt: skip


@nox.session
def cluster(session: nox.Session) -> None:
    """Three nodes on loopback: elections, replicas, a leader killed under load."""
    session.install("-e", ".[test]")
    session.run(
        "python", "-m", "pytest", "-m", "", "-n", "0", *(session.posargs or ["tests/cluster"])
    )


@nox.session
def bench(session: nox.Session) -> None:
    """Ours against nats-py, with a verdict per target; a missed `must` fails the session.

    Arguments go to run_all.py (all but `--out`); the last of a repeated option counts:
    `nox -s bench -- --rounds 1 --cases sequenced`.
    """
    session.install(".[server]")
    folder = ROOT / "examples" / "bench"
    out = ROOT / "bench-results"
    if "--append" not in session.posargs:
        # A run that dies early must not be judged by the results of the one before.
        (out / "runs.json").unlink(missing_ok=True)
    session.run(
        "python", str(folder / "run_all.py"),
        "--peers", "natspy_asyncio,natspy_pull",
        "--extra", f"shove_actors={folder / 'peer_shove_actors.py'}",
        "--rounds", "5", "--out", str(out), *session.posargs,
    )  # fmt: skip
    session.run("python", str(folder / "targets.py"), str(out / "runs.json"))


@nox.session(python="3.13")
def bench_actors(session: nox.Session) -> None:
    """The actors beside bare Trio, pykka and triotp, with a verdict per goal; needs no server.

    On 3.13, because triotp does. Arguments go to run.py: `nox -s bench_actors -- --cases tell`.
    """
    session.install(".", "psutil", "pykka>=4", "triotp>=0.3")
    folder = ROOT / "examples" / "bench_actors"
    out = ROOT / "bench-results"
    session.run("python", str(folder / "run.py"), "--out", str(out), *session.posargs)


@nox.session
def chaos(session: nox.Session) -> None:
    """A hundred runs of the flights through kills and stops of the server and of workers.

    Twenty minutes at most, half of that on two free cores. `nox -s chaos -- --seed 17` repeats
    one; `tests/chaos/run.py` says what is checked, and how.
    """
    session.install(".[server]")
    session.run("python", "-m", "tests.chaos.run", *session.posargs)


# ------------------------------------------------------------------------------ Docker


def _scratch(session: nox.Session) -> pathlib.Path:
    return pathlib.Path(session.create_tmp()).resolve()


def _debian_server(scratch: pathlib.Path) -> str | None:
    """The executable of Debian's package, unpacked under `scratch`; None without apt or package."""
    unpacked = scratch / "debian"
    binary = unpacked / "usr" / "sbin" / "nats-server"
    if not binary.exists():
        if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
            return None
        shutil.rmtree(unpacked, ignore_errors=True)
        done = subprocess.run(
            ["apt-get", "download", "nats-server"], cwd=scratch, capture_output=True, timeout=300
        )
        packages = sorted(scratch.glob("nats-server_*.deb"))
        if done.returncode or not packages:
            return None
        subprocess.run(["dpkg", "-x", str(packages[-1]), str(unpacked)], check=True, timeout=60)
    return str(binary) if binary.exists() else None


def _docker_answers() -> bool:
    """The command alone proves nothing: it is often installed where no engine runs."""
    if shutil.which("docker") is None:
        return False
    try:
        done = subprocess.run(["docker", "info"], capture_output=True, timeout=20)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def _docker(*args: str) -> str:
    done = subprocess.run(["docker", *args], capture_output=True, text=True, timeout=300)
    if done.returncode:
        sys.exit(f"docker {args[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


@contextlib.contextmanager
def _nats_in_docker(image: str) -> Iterator[str]:
    """A server for the block: its address."""
    container = _docker("run", "--detach", "--rm", "--publish", "127.0.0.1::4222", image, "-js")
    try:
        url = "nats://" + _docker("port", container, "4222/tcp").splitlines()[0]
        _wait_for_nats(url, timeout=30.0)
        yield url
    finally:
        _docker("rm", "--force", "--volumes", container)


def _greeting(url: str) -> dict[str, Any]:
    """What the server says to whoever connects; `client_id` counts its connections."""
    parts = urllib.parse.urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port or 4222), 5.0) as sock:
        line = sock.makefile("rb").readline()
    if not line.startswith(b"INFO "):
        raise OSError(f"{url} is not a NATS server: it greets with {line[:20]!r}")
    greeting: dict[str, Any] = json.loads(line[5:])
    return greeting


def _wait_for_nats(url: str, timeout: float) -> None:
    """Docker accepts connections before the server inside does, so wait for its greeting."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            _greeting(url)
            return
        time.sleep(0.1)
    sys.exit(f"NATS in Docker did not greet on {url} within {timeout:g} s")
