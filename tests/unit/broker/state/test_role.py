"""RoleState: the configured role, changes at run time, and its listeners."""

from __future__ import annotations

import ast
import logging
from pathlib import Path

import pytest

from aerobee.broker.state.config import BrokerConfig
from aerobee.broker.state.identity import BrokerIdentity
from aerobee.broker.state.role import Role, RoleState, configured_role
from aerobee.store.files.config import BrokerRole
from tests.fakes import FakePeer
from tests.sources import nodes_of
from tests.unit.broker.sending import Sending, send_frame

BROKER = Path(__file__).resolve().parents[4] / "aerobee" / "broker"


@pytest.mark.parametrize(
    ("broker_id", "configured", "role"),
    [
        (0, BrokerRole.ASYNC_MASTER, Role.MASTER),
        (0, BrokerRole.SYNC_MASTER, Role.MASTER),
        (0, BrokerRole.SLAVE, Role.SLAVE),
        (1, BrokerRole.ASYNC_MASTER, Role.SLAVE),
        (1, BrokerRole.SLAVE, Role.SLAVE),
    ],
)
def test_the_configuration_says_the_first_role(broker_id: int, configured: BrokerRole, role: Role) -> None:
    identity = BrokerIdentity(
        cluster="c", name="b", broker_id=broker_id, address="1.2.3.4:5", ha_address="", store_host=bytes(8)
    )
    assert configured_role(identity, configured).role is role


@pytest.mark.parametrize("role", list(Role))
def test_only_a_master_takes_writes_and_all_but_a_fenced_one_serve_reads(role: Role) -> None:
    state = RoleState(role, "of the test")
    assert state.takes_writes == state.is_master == (role is Role.MASTER)
    assert state.serves_reads == (role is not Role.FENCED)


def test_listeners_hear_of_each_change_and_one_that_fails_stops_no_other() -> None:
    state, heard = RoleState(Role.MASTER, "of the test", epoch=3), []

    def fail(_: RoleState) -> None:
        raise RuntimeError

    state.on_change(fail)
    state.on_change(lambda changed: heard.append((changed.role, changed.epoch, changed.reason)))
    state.change(Role.MASTER, "still", epoch=3)
    state.change(Role.FENCED, "its lease ran out", epoch=4)
    state.change(Role.SLAVE, "another one was elected", epoch=5)
    assert heard == [
        (Role.FENCED, 4, "its lease ran out"),
        (Role.SLAVE, 5, "another one was elected"),
    ]
    with pytest.raises(ValueError, match="from 5 back to 4"):
        state.change(Role.MASTER, "an old message", epoch=4)
    assert state.role is Role.SLAVE


def test_a_change_of_a_configured_role_logs_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "aerobee.broker.state.role")
    state = RoleState(Role.SLAVE, "not configured", is_provisional=True)
    state.change(Role.SLAVE, "there is no master yet", is_provisional=True)
    state.change(Role.MASTER, "the controllers made it so", epoch=1)
    state.change(Role.FENCED, "its lease ran out", epoch=1)
    assert [record.levelno for record in caplog.records] == [logging.INFO, logging.WARNING]
    caplog.clear()
    state = RoleState(Role.SLAVE, "not configured", is_provisional=True)
    state.change(Role.SLAVE, "the controllers made it so", epoch=1)
    state.change(Role.MASTER, "its master died", epoch=2)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_sends_stop_and_start_with_the_role_on_every_way(tmp_path: Path) -> None:
    sending = Sending(tmp_path, BrokerConfig(broker_name="broker-a"))
    peer, frame = FakePeer(), send_frame()
    assert sending.fast_path.burst(peer, frame, 0) == len(frame)  # type: ignore[arg-type]
    sending.role.change(Role.FENCED, "its lease ran out")
    assert sending.fast_path.burst(peer, frame, 0) == 0  # type: ignore[arg-type]
    refused = sending.handle(peer, frame)
    assert refused is not None
    assert refused.code == 14
    sending.role.change(Role.MASTER, "it was elected")
    assert sending.fast_path.burst(peer, frame, 0) == len(frame)  # type: ignore[arg-type]
    taken = sending.handle(peer, frame)
    assert taken is not None
    assert taken.code == 0
    assert sending.store.max_offset("TopicNormal", 1) == 3
    sending.close()


def test_only_owners_read_settings_of_role_and_flush() -> None:
    """A second answer would be another one."""
    asking = {
        str(path.relative_to(BROKER))
        for path in BROKER.rglob("*.py")
        for node in nodes_of(path)
        if isinstance(node, ast.Attribute) and node.attr in ("broker_role", "is_sync_flush", "SLAVE")
    }
    replication = {f"replication/{name}.py" for name in ("classic_mode", "replication", "wiring")}
    assert asking == {"assembly/serving.py", "state/role.py", "acting/acting_master.py"} | replication
