"""A cluster of one broker, and a gRPC client at its ordinary port."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from aerobee.testing import LocalCluster
from tests.integration.grpc.client import GrpcClient


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster(broker_config={"recallMessageEnable": True}) as started:
        yield started


@pytest.fixture
async def client(cluster: LocalCluster) -> AsyncIterator[GrpcClient]:
    async with GrpcClient(cluster.broker().address) as made:
        yield made
