"""The fixtures behind `aerobee_cluster` for tests that pytest-asyncio runs, one for each scope of event loop.

A cluster belongs to one event loop, and pytest-asyncio fixes a fixture's loop where the fixture is declared. So there
is one fixture per scope, and plugin.py requests the test's. Loaded by plugin.py, only where pytest-asyncio is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from importlib import import_module
from typing import TYPE_CHECKING, Literal

import pytest
import pytest_asyncio

from aerobee.testing.plugin import marker_options

if TYPE_CHECKING:
    from aerobee.testing.local_cluster import LocalCluster

_Scope = Literal["function", "class", "module", "package", "session"]


def _fixture(scope: _Scope) -> object:
    # A separate function for each: pytest-asyncio keeps the loop's scope as an attribute of the function.
    async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[LocalCluster]:
        home = import_module("aerobee.testing.local_cluster")
        async with home.LocalCluster(**marker_options(request)) as cluster:
            yield cluster

    return pytest_asyncio.fixture(loop_scope=scope, name=f"_aerobee_cluster_in_{scope}_loop")(cluster)


_in_function_loop = _fixture("function")
_in_class_loop = _fixture("class")
_in_module_loop = _fixture("module")
_in_package_loop = _fixture("package")
_in_session_loop = _fixture("session")
