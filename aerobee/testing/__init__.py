"""A real cluster inside a test's process, and the pytest plugin that gives it as a fixture.

    async with LocalCluster() as cluster:
        async with cluster.producer() as producer:
            await producer.send(Message("orders", b"hello"))

The names are loaded when they are first used: pytest imports the plugin, and with it this package, in every run of
every project that has Aerobee installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aerobee.testing.local_cluster import LocalCluster
    from aerobee.testing.threaded_cluster import ThreadedCluster

__all__ = ["LocalCluster", "ThreadedCluster"]

_HOMES = {
    "LocalCluster": "aerobee.testing.local_cluster",
    "ThreadedCluster": "aerobee.testing.threaded_cluster",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
