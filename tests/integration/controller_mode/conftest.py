"""A broker group with controllers for the tests in this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from aerobee.clock import SystemClock
from aerobee.network import AsyncioNetwork
from aerobee.remoting.client import RemotingClient
from tests.integration.controller_group import Group


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[Group]:
    client = RemotingClient(clock=SystemClock(), network=AsyncioNetwork())
    async with AsyncExitStack() as stack:
        group = Group(tmp_path, client, stack)
        yield group
        await group.stop()
        await client.close()
