"""`aerobee up` says who may administer what others than this machine reach."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee.ops.servers.up import _administrators, make_plan
from aerobee.ops.settings.settings import broker_settings

USER = 'initAuthenticationUser={"username":"root","password":"secret-of-root"}'


@pytest.mark.parametrize(
    ("assignments", "said"),
    [
        (["bindAddress=127.0.0.1"], ""),
        (["bindAddress=localhost"], ""),
        (["bindAddress=0.0.0.0"], "from this machine only"),
        (["bindAddress="], "from this machine only"),
        (["listeners=internal://127.0.0.1:10911,external://192.0.2.7:10921"], "from this machine only"),
        (["bindAddress=0.0.0.0", "adminOpen=true"], "everyone who reaches these ports"),
        (["bindAddress=0.0.0.0", "authenticationEnabled=true", USER], "users whom access control permits"),
    ],
)
def test_administrators_of_a_broker(assignments: list[str], said: str) -> None:
    found = _administrators(broker_settings(assignments=assignments, environ={}))
    assert found.startswith(said)
    assert bool(found) == bool(said)


@pytest.mark.parametrize("said", ["adminOpen=true", " adminOpen = true "])
def test_admin_open_holds_for_every_server_of_up(tmp_path: Path, said: str) -> None:
    plan = make_plan(
        broker_count=1,
        port=10_911,
        nameserver_port=9_876,
        host="0.0.0.0",
        advertise=None,
        data=tmp_path,
        replica_count=3,
        assignments=[said],
        environ={},
    )
    assert plan.nameserver.access.admin_open
    assert said in plan.nameserver_arguments
    assert [each["adminOpen"] for each in plan.controllers] == ["true"] * 3
