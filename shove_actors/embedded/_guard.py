"""Ends the server when this process ends, however it ends.

A `finally` covers exceptions, cancellation and Ctrl-C, but nothing in this process runs after
SIGKILL, an abort inside an extension, or the out-of-memory killer. Something outside has to notice.

Linux offers `PR_SET_PDEATHSIG`, but it fires when the *thread* that started the child ends, and
Trio starts children from worker threads that end after a few idle seconds; it also needs code
between fork and exec, which is unsafe while other threads run. So a pipe is watched instead: the
guard is a small shell that reads from a pipe whose only writing end is held by this process. When
this process ends, the kernel closes that end, the shell reads end-of-file, kills the server and
removes the private directory. It works on every POSIX system and needs no thread.

No gap is left at the start: the server is started through a gate, a shell that waits for one line
on a pipe of its own before it becomes the server (`exec` keeps the pid). The line is sent after
the guard knows the pid. If this process dies in between, the gate reads end-of-file and leaves.

The guard and the gate are apart from the terminal (setsid), so Ctrl-C there reaches neither: the
program decides when its server ends. Children that this process makes by a bare `fork()` (without
`exec`) inherit the pipe and so delay the guard until they have ended too.

Tests: `test_nothing_is_left_behind_when_the_parent_is_killed`.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess

_log = logging.getLogger("shove_actors.embedded")

# Each line read is the pid of the present server, which is also the number of its process group;
# an empty line says that there is none. After a kill the directory is removed only once the server
# is gone, or it might write into it again. The wait is bounded because an init that does not reap
# leaves a zombie, which still counts. `kill -s` is the form that every shell takes with a group.
_GUARD_SCRIPT = """
pid=
while IFS= read -r line; do pid=$line; done
if [ -n "$pid" ]; then
    kill -s KILL -- "-$pid"
    tries=0
    while [ "$tries" -lt 40 ] && kill -s 0 -- "-$pid"; do sleep 0.05; tries=$((tries + 1)); done
fi
rm -rf -- "$1"
"""

_GATE_SCRIPT = 'IFS= read -r go && exec "$@" </dev/null'


def gated(command: list[str]) -> list[str]:
    """The command line that waits for a line on its standard input and then becomes `command`."""
    return ["/bin/sh", "-c", _GATE_SCRIPT, "sh", *command]


def kill_group(pid: int) -> None:
    """Kills a gated process that has not been reaped, and what it started if it is a script."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # ended, and not reaped yet


class Guard:
    """One guard process; `private_dir` is removed when this process dies."""

    def __init__(self, private_dir: str) -> None:
        # Not a `with`: the guard lives until `close`.
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD_SCRIPT, "sh", private_dir],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            bufsize=0,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def protect(self, pid: int | None) -> None:
        """Names the process to kill when this one dies; None while there is none."""
        assert self._process.stdin is not None
        line = f"{pid}\n" if pid is not None else "\n"
        try:
            self._process.stdin.write(line.encode())
        except OSError:
            # Somebody killed the guard. The server itself is unharmed.
            _log.warning("the embedded server's guard is gone; a crash would leave it running")

    def close(self) -> None:
        """Ends the guard and reaps it. The directory is gone afterwards."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class Gate:
    """The pipe that holds a server back until the guard knows its pid."""

    def __init__(self) -> None:
        self.child_end, self._own_end = os.pipe()
        self._open = True

    def release(self) -> None:
        """Lets the server start."""
        try:
            os.write(self._own_end, b"go\n")
        except BrokenPipeError:
            pass  # the gate was killed already; the caller finds its exit status

    def close(self) -> None:
        """Closes both ends. A gate that was not released leaves without starting anything."""
        if self._open:
            self._open = False
            os.close(self.child_end)
            os.close(self._own_end)
