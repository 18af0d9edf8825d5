"""The fixtures behind `aerobee_cluster` for tests that pytest-asyncio runs, one for each scope of event loop.

A cluster belongs to one event loop, and pytest-asyncio fixes a fixture's loop where the fixture is declared. So there
is one fixture a scope, and plugin.py asks for that of the test. Loaded by plugin.py, only where pytest-asyncio is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from importlib import import_module
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from aerobee.testing.plugin import marker_options

if TYPE_CHECKING:
    from aerobee.testing.local_cluster import LocalCluster


async def _cluster(request: pytest.FixtureRequest) -> AsyncIterator[LocalCluster]:
    async with import_module("aerobee.testing.local_cluster").LocalCluster(
        **marker_options(request)
    ) as cluster:
        yield cluster


_in_function_loop = pytest_asyncio.fixture(
    _cluster, loop_scope="function", name="_aerobee_cluster_in_function_loop"
)
_in_class_loop = pytest_asyncio.fixture(_cluster, loop_scope="class", name="_aerobee_cluster_in_class_loop")
_in_module_loop = pytest_asyncio.fixture(
    _cluster, loop_scope="module", name="_aerobee_cluster_in_module_loop"
)
_in_package_loop = pytest_asyncio.fixture(
    _cluster, loop_scope="package", name="_aerobee_cluster_in_package_loop"
)
_in_session_loop = pytest_asyncio.fixture(
    _cluster, loop_scope="session", name="_aerobee_cluster_in_session_loop"
)
