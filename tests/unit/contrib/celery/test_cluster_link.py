"""The link that connections of a process share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from aerobee.client.base.config import ClientConfig
from aerobee.contrib.celery import cluster_link as module
from aerobee.contrib.celery.cluster_link import ClusterLink, acquire, release
from aerobee.contrib.celery.settings import Settings
from aerobee.errors import ConnectFailed, UsageError

SETTINGS = Settings(nameservers=("127.0.0.1:1",), client=ClientConfig())


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ClusterLink]]:
    """Links that were opened, without a cluster."""
    found: list[ClusterLink] = []

    class NoClient:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        async def start(self) -> None: ...

        async def close(self) -> None: ...

    monkeypatch.setattr(module, "Producer", NoClient)
    monkeypatch.setattr(module, "Admin", NoClient)
    real = ClusterLink.open

    def remember(link: ClusterLink) -> None:
        found.append(link)
        real(link)

    monkeypatch.setattr(ClusterLink, "open", remember)
    yield found
    for link in found:
        link.close()
    module._links.clear()


def test_connections_share_a_link_until_the_last_one_ends(opened: list[ClusterLink]) -> None:
    first, second = acquire(SETTINGS), acquire(SETTINGS)
    assert first is second
    release(first)
    assert second.is_open
    release(second)
    assert not second.is_open
    assert acquire(SETTINGS) is not second
    assert len(opened) == 2


def test_other_credentials_have_another_link(opened: list[ClusterLink]) -> None:
    other = Settings(nameservers=SETTINGS.nameservers, client=ClientConfig(access_key="a", secret_key="b"))
    assert acquire(SETTINGS) is not acquire(other)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork()")
def test_forked_child_opens_its_link_and_leaves_the_parents_alone(opened: list[ClusterLink]) -> None:
    link = acquire(SETTINGS)
    child = os.fork()
    if child == 0:
        try:
            ok = not link.is_open and acquire(SETTINGS) is not link and link in module._abandoned
        except BaseException:
            ok = False
        os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert link.is_open


def test_closed_link_refuses_calls(opened: list[ClusterLink]) -> None:
    link = acquire(SETTINGS)
    release(link)

    async def work() -> None: ...

    with pytest.raises(UsageError, match="another process, or is closed"):
        link.call(work())
    link.call_soon(pytest.fail)


def test_failed_start_ends_its_thread() -> None:
    link = ClusterLink(SETTINGS.nameservers, SETTINGS.client)
    with pytest.raises(ConnectFailed):
        link.open()
    assert not link.is_open


def test_table_of_absent_topics_is_bounded() -> None:
    link = ClusterLink(SETTINGS.nameservers, SETTINGS.client)
    for number in range(module.ABSENT_MAX + 5):
        link._remember_absent(f"reply-{number}")
    assert len(link._absent) == module.ABSENT_MAX
    link._absent = dict.fromkeys(link._absent, -10.0)
    link._remember_absent("new")
    assert list(link._absent) == ["new"]
