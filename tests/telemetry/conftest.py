from __future__ import annotations

from tests.runtime.fixtures import _kind as _kind
from tests.runtime.fixtures import clock as clock
from tests.runtime.fixtures import memory_world as memory_world
from tests.runtime.fixtures import server_world as server_world
from tests.runtime.fixtures import world as world
