"""One three-node cluster for all of these tests, whole again before each of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clusters import Cluster


@pytest.fixture(scope="package")
def _cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(_cluster: Cluster) -> Cluster:
    _cluster.repair()
    return _cluster
