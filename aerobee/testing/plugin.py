"""The pytest plugin. Installed with Aerobee, found by pytest by itself; costs nothing until a fixture is used.

    async def test_orders(aerobee_cluster):                     # LocalCluster, in the test's own event loop
        await aerobee_cluster.create_topic("orders")

    def test_from_outside(aerobee_cluster):                     # ThreadedCluster, for a test that is not async
        run_my_program(namesrv=aerobee_cluster.nameserver_address)

    def test_shared(aerobee_cluster_session): ...               # ThreadedCluster, one for the whole run

`aerobee_cluster` is new for each test. An async test that pytest-asyncio runs gets a LocalCluster in the event loop
of the test, whatever `loop_scope` it has; any other test, also one that anyio runs, gets a ThreadedCluster, whose
methods block. `aerobee_cluster_session` is a ThreadedCluster: its event loop outlives every test's loop.

    def test_image(aerobee_container): ...                      # AerobeeContainer, one for the whole run

Options of the cluster: `@pytest.mark.aerobee_cluster(brokers=2, broker_config={...})`; of the session's cluster: a
fixture `aerobee_cluster_options` of session scope in conftest.py that returns them; of the container: one named
`aerobee_container_options`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

from aerobee.errors import UsageError

if TYPE_CHECKING:
    from aerobee.testing.container import AerobeeContainer
    from aerobee.testing.local_cluster import LocalCluster
    from aerobee.testing.threaded_cluster import ThreadedCluster

_MARKER = "aerobee_cluster"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f"{_MARKER}(**options): options of the test's cluster, as LocalCluster takes them"
    )
    # Its fixtures are declared with pytest-asyncio's decorator, so that they work in its strict mode too.
    if config.pluginmanager.hasplugin("asyncio"):
        config.pluginmanager.import_plugin("aerobee.testing.asyncio_fixtures")


@pytest.fixture(scope="session")
def aerobee_cluster_options() -> dict[str, Any]:
    """Override in conftest.py to start `aerobee_cluster_session` with other options."""
    return {}


@pytest.fixture
def aerobee_cluster(request: pytest.FixtureRequest) -> Iterator[LocalCluster | ThreadedCluster]:
    """A cluster for one test: LocalCluster in an async test, ThreadedCluster in any other."""
    scope = _loop_scope(request)
    if scope is not None:
        yield request.getfixturevalue(f"_aerobee_cluster_in_{scope}_loop")
        return
    with _threaded_cluster(marker_options(request)) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def aerobee_cluster_session(aerobee_cluster_options: dict[str, Any]) -> Iterator[ThreadedCluster]:
    """One cluster for the whole run, in a background thread. Topics and groups outlive the tests that created them."""
    with _threaded_cluster(aerobee_cluster_options) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def aerobee_container_options() -> dict[str, Any]:
    """Override in conftest.py to start `aerobee_container` with other options, such as `image`."""
    return {}


@pytest.fixture(scope="session")
def aerobee_container(aerobee_container_options: dict[str, Any]) -> Iterator[AerobeeContainer]:
    """One container with a cluster for the whole run; needs Docker and the extra container."""
    try:
        module = import_module("aerobee.testing.container")
    except ImportError as missing:
        raise UsageError(
            "aerobee_container needs a package that is not installed: pip install 'aerobee[container]'"
        ) from missing
    with module.AerobeeContainer(**aerobee_container_options) as container:
        yield container


def marker_options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The options of the nearest `aerobee_cluster` marker. Raises UsageError for one that there is not."""
    marker = request.node.get_closest_marker(_MARKER)
    if marker is None:
        return {}
    known = inspect.signature(import_module("aerobee.testing.local_cluster").LocalCluster).parameters
    for name in marker.kwargs:
        if name not in known:
            raise UsageError(f"the mark {_MARKER} has no option {name}; it takes {', '.join(known)}")
    if marker.args:
        raise UsageError(f"the mark {_MARKER} takes its options by name: {_MARKER}(brokers=2)")
    return dict(marker.kwargs)


def _loop_scope(request: pytest.FixtureRequest) -> str | None:
    """The scope of the event loop in which pytest-asyncio will run the test; None when it will not."""
    if not request.config.pluginmanager.hasplugin("asyncio"):
        return None
    if not inspect.iscoroutinefunction(getattr(request.node, "obj", None)):
        return None
    marker = request.node.get_closest_marker("asyncio")
    if marker is None:
        return None
    default = request.config.getini("asyncio_default_test_loop_scope") or "function"
    return str(marker.kwargs.get("loop_scope") or marker.kwargs.get("scope") or default)


def _threaded_cluster(options: dict[str, Any]) -> ThreadedCluster:
    cluster: ThreadedCluster = import_module("aerobee.testing.threaded_cluster").ThreadedCluster(**options)
    return cluster
