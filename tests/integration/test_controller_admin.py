"""Who may administer a controller without key: its own machine, a master that stops, and with adminOpen=true every peer."""

from __future__ import annotations

import inspect
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from aerobee.errors import RemoteError
from aerobee.ha.controller.codes import ControllerCode
from aerobee.ha.controller.controller import Controller
from aerobee.ops.servers.controller import make_controller
from aerobee.ops.servers.nameserver import start_nameserver
from aerobee.ops.settings.settings import ControllerSettings, controller_settings, nameserver_settings
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from tests.fakes import FakePeer
from tests.integration.controller_quorum import GROUP, leader_of, tool
from tests.ports import free_port

OUTSIDER, MASTER = "203.0.113.9", "203.0.113.1"
DESIGNATED = {"brokerName": GROUP, "brokerId": "2", "designateElect": "true"}
ADMINISTRATORS = [
    (RequestCode.UPDATE_CONTROLLER_CONFIG, {}),
    (RequestCode.GET_CONTROLLER_CONFIG, {}),
    (RequestCode.CLEAN_BROKER_DATA, {"brokerName": GROUP, "brokerControllerIdsToClean": "2"}),
    (RequestCode.AEROBEE_CHANGE_QUORUM, {"action": "remove", "member": "n0"}),
    (RequestCode.CONTROLLER_ELECT_MASTER, DESIGNATED),
    (RequestCode.CONTROLLER_ELECT_MASTER, {"brokerName": GROUP, "apartMillis": "600000"}),
]


def texts(directory: Path, *more: str, host: str = "127.0.0.1") -> list[str]:
    port = free_port()
    return [
        "controllerDLegerGroup=q",
        f"controllerDLegerPeers=n0-{host}:{port}",
        "controllerDLegerSelfId=n0",
        f"controllerStorePath={directory}",
        *more,
    ]


@asynccontextmanager
async def running(controller: Controller) -> AsyncIterator[Controller]:
    async with controller:
        await leader_of([controller])
        yield controller


async def ask(controller: Controller, host: str, code: int, ext: dict[str, str]) -> RemotingCommand:
    """The answer to a peer at `host`; a refusal by the gate is one, too."""
    try:
        found = controller.handlers[code](FakePeer((host, 5)), RemotingCommand(code, dict(ext)))
        answer = await found if inspect.isawaitable(found) else found
    except RemoteError as refusal:
        return RemotingCommand(refusal.code, remark=refusal.remark)
    assert isinstance(answer, RemotingCommand)
    return answer


async def test_untrusted_peers_administer_no_controller(tmp_path: Path) -> None:
    settings = controller_settings(assignments=texts(tmp_path), environ={})
    async with running(make_controller(settings)) as controller:
        for code, ext in ADMINISTRATORS:
            refused = await ask(controller, OUTSIDER, code, ext)
            assert refused.code == ResponseCode.NO_PERMISSION, code
            assert f"not to {OUTSIDER}: turn on authenticationEnabled and sign it" in (refused.remark or "")
            local = await ask(controller, "127.0.0.1", code, ext)
            assert local.code != ResponseCode.NO_PERMISSION, code


async def test_brokers_of_other_machines_are_served_without_a_key(tmp_path: Path) -> None:
    settings = controller_settings(assignments=texts(tmp_path), environ={})
    async with running(make_controller(settings)) as controller:
        named = {"clusterName": "C", "brokerName": GROUP}
        own = {**named, "brokerId": "1"}
        for code, ext in (
            (RequestCode.CONTROLLER_GET_METADATA_INFO, {}),
            (RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, named),
            (
                RequestCode.CONTROLLER_APPLY_BROKER_ID,
                {**named, "appliedBrokerId": "1", "registerCheckCode": "c"},
            ),
            (RequestCode.CONTROLLER_REGISTER_BROKER, {**own, "brokerAddress": "m:1"}),
            (RequestCode.BROKER_HEARTBEAT, {**own, "brokerAddr": "m:1"}),
            (RequestCode.CONTROLLER_ELECT_MASTER, {**own, "designateElect": "false"}),
            (RequestCode.CONTROLLER_GET_REPLICA_INFO, {"brokerName": GROUP}),
        ):
            answer = await ask(controller, MASTER, code, ext)
            assert answer.code in (0, ControllerCode.MASTER_STILL_EXIST), (code, answer.remark)
        altered = RemotingCommand(
            RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
            {"brokerName": GROUP, "masterBrokerId": "1", "masterEpoch": "1"},
            b'{"syncStateSet":[1],"syncStateSetEpoch":1}',
        )
        found = controller.handlers[altered.code](FakePeer((MASTER, 5)), altered)
        assert inspect.isawaitable(found)
        answered = await found
        assert answered is not None
        assert answered.code == ControllerCode.ALTER_SYNC_STATE_SET_FAILED, answered  # nothing changes


async def test_who_sits_where_the_master_runs_may_give_its_mastership_away(tmp_path: Path) -> None:
    # `aerobee ha step-down` in a pod that is about to be stopped asks controllers in others.
    settings = controller_settings(assignments=texts(tmp_path), environ={})
    async with running(make_controller(settings)) as controller:
        for broker_id, host in ((1, MASTER), (2, OUTSIDER)):
            named = {"clusterName": "C", "brokerName": GROUP, "brokerId": str(broker_id)}
            taken = {**named, "appliedBrokerId": str(broker_id), "registerCheckCode": host}
            for code, ext in (
                (RequestCode.CONTROLLER_APPLY_BROKER_ID, taken),
                (RequestCode.CONTROLLER_REGISTER_BROKER, {**named, "brokerAddress": f"{host}:1"}),
                (RequestCode.BROKER_HEARTBEAT, {**named, "brokerAddr": f"{host}:1"}),
            ):
                answer = await ask(controller, host, code, ext)
                assert answer.code == 0, answer.remark
            await ask(controller, host, RequestCode.CONTROLLER_ELECT_MASTER, named)
        assert controller.state.groups[GROUP].master_id == 1

        async def elect(host: str) -> int:
            return (await ask(controller, host, RequestCode.CONTROLLER_ELECT_MASTER, DESIGNATED)).code

        assert await elect(OUTSIDER) == ResponseCode.NO_PERMISSION
        assert await elect(MASTER) != ResponseCode.NO_PERMISSION
        # Only its group, and nothing else.
        other = {**DESIGNATED, "brokerName": "another"}
        refused = await ask(controller, MASTER, RequestCode.CONTROLLER_ELECT_MASTER, other)
        assert refused.code == ResponseCode.NO_PERMISSION
        refused = await ask(controller, MASTER, RequestCode.GET_CONTROLLER_CONFIG, {})
        assert refused.code == ResponseCode.NO_PERMISSION


async def test_a_heartbeat_with_the_masters_id_moves_no_host(tmp_path: Path) -> None:
    settings = controller_settings(assignments=texts(tmp_path), environ={})
    async with running(make_controller(settings)) as controller:
        master, untrusted = FakePeer((MASTER, 5)), FakePeer((OUTSIDER, 5))
        named = {"clusterName": "C", "brokerName": GROUP, "brokerId": "1"}
        taken = {**named, "appliedBrokerId": "1", "registerCheckCode": "c"}
        beat = RemotingCommand(RequestCode.BROKER_HEARTBEAT, {**named, "brokerAddr": f"{MASTER}:1"})

        def beats(peer: FakePeer) -> None:
            answer = controller.handlers[beat.code](peer, beat)
            assert isinstance(answer, RemotingCommand)
            assert answer.code == 0, answer.remark

        async def elect(host: str) -> int:
            return (await ask(controller, host, RequestCode.CONTROLLER_ELECT_MASTER, DESIGNATED)).code

        await ask(controller, MASTER, RequestCode.CONTROLLER_APPLY_BROKER_ID, taken)
        registered = {**named, "brokerAddress": f"{MASTER}:1"}
        await ask(controller, MASTER, RequestCode.CONTROLLER_REGISTER_BROKER, registered)
        beats(master)
        await ask(controller, MASTER, RequestCode.CONTROLLER_ELECT_MASTER, named)
        assert controller.state.groups[GROUP].master_id == 1
        beats(untrusted)
        assert await elect(OUTSIDER) == ResponseCode.NO_PERMISSION
        assert await elect(MASTER) != ResponseCode.NO_PERMISSION
        untrusted.close()
        beats(FakePeer((OUTSIDER, 6)))
        assert await elect(OUTSIDER) == ResponseCode.NO_PERMISSION
        # It runs elsewhere now.
        moved = FakePeer(("203.0.113.2", 5))
        beats(moved)
        master.close()
        beats(moved)
        assert await elect("203.0.113.2") != ResponseCode.NO_PERMISSION
        assert await elect(MASTER) == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize("is_hosted", [False, True])
async def test_admin_open_admits_every_client(tmp_path: Path, is_hosted: bool) -> None:
    for admin_open in ("true", "false"):
        own = texts(tmp_path / admin_open, f"adminOpen={admin_open}")
        if is_hosted:
            both = nameserver_settings(assignments=[*own, "enableControllerInNamesrv=true"], environ={})
            assert both.controller is not None
            settings = ControllerSettings(both.controller, both.tls)
            start_nameserver(both)  # the same key is the NameServer's
            assert both.access.admin_open == (admin_open == "true")
        else:
            settings = controller_settings(assignments=own, environ={})
        async with running(make_controller(settings)) as controller:
            for code, ext in ADMINISTRATORS[:2]:
                code_given = (await ask(controller, OUTSIDER, code, ext)).code
                assert (code_given == ResponseCode.NO_PERMISSION) == (admin_open == "false")


async def test_a_tool_of_this_machine_may_come_by_its_address_of_the_network(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no network")
        host = str(probe.getsockname()[0])
    settings = controller_settings(assignments=texts(tmp_path, host=host), environ={})
    async with running(make_controller(settings)) as controller, tool() as asks:
        answer = await asks.call(f"{host}:{controller.config.own_port}", RequestCode.GET_CONTROLLER_CONFIG)
        assert answer.code == 0, answer.remark
