"""Which answers of NameServers make a slave follow its master again."""

from __future__ import annotations

import pytest

from aerobee.broker.replication.controller_agent import ControllerAgent
from aerobee.broker.replication.controller_client import GroupState

MASTER = "127.0.0.1:10911"


def test_an_answer_with_the_known_ha_port_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slave that follows registers again everywhere: each change of master made it do so twice."""
    agent = ControllerAgent.__new__(ControllerAgent)
    agent._ha_of = "", ""
    agent._group = GroupState(master_id=1, master_address=MASTER, master_epoch=2)
    agent._master_of_epoch = -1
    followed: list[GroupState] = []
    monkeypatch.setattr(agent, "_follow", followed.append)
    agent.nameserver_says(MASTER, "127.0.0.1:10912")
    assert followed == []
    agent.nameserver_says(MASTER, "127.0.0.1:20912")
    agent.nameserver_says(MASTER, "127.0.0.1:20912")
    assert followed == [agent._group]
