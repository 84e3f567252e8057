"""Notes beside a queue on a real server (see `backends/nats/_notes.py`)."""

from __future__ import annotations

import pytest

from shove_actors._errors import StreamNotFound
from shove_actors.embedded import ServerProcess
from tests.support import wait_until

from .nats_process import kinds, of, process


async def test_the_stream_is_made_with_the_first_note(own_server: ServerProcess) -> None:
    async with process(own_server, "q") as one:
        backend = of(one)
        assert await backend.read_note("q", 7) is None
        with pytest.raises(StreamNotFound):
            await backend.js.stream_info("q-attempts")
        await backend.write_note("q", 7, b"first")
        await backend.write_note("q", 8, b"other")
        await backend.write_note("q", 7, b"second")
        assert await backend.read_note("q", 7) == b"second"
        assert await backend.read_note("q", 8) == b"other"
        assert await backend.read_note("q", 9) is None
        info = await backend.js.stream_info("q-attempts")
        assert info.messages == 2, "one per message, whatever is written"
        assert info.config.max_age > 0


async def test_notes_survive_the_server(own_server: ServerProcess) -> None:
    async with process(own_server, "q") as one:
        await of(one).write_note("q", 1, b"kept")
        own_server.kill()
        own_server.restart()
        await wait_until(lambda: "reconnected" in kinds(one))
        assert await of(one).read_note("q", 1) == b"kept"
