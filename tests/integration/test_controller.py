"""Controllers behind real sockets: a quorum of three, what brokers ask of it, and what happens when the leader goes."""

from __future__ import annotations

import asyncio
import json
import shutil
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from aerobee.clock import SystemClock
from aerobee.config import build, read_properties
from aerobee.errors import AerobeeError, StoreError, StoreLocked
from aerobee.ha.controller.codes import ControllerCode
from aerobee.ha.controller.commands import REPLICAS_MAX
from aerobee.ha.controller.config import ControllerConfig, LiveControllerConfig
from aerobee.ha.controller.controller import Controller, config_calls
from aerobee.ha.raft.messages import AppendRequest, encode_message
from aerobee.host_port import split_address
from aerobee.network import AsyncioNetwork
from aerobee.ops.commands.ha import QuorumAdmin
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.fastjson import loads
from aerobee.remoting.frame import decode_frame, encode_frame
from aerobee.remoting.proven_client import prove
from aerobee.remoting.request_proof import PROOF
from aerobee.remoting.signature import Credentials
from aerobee.store.files.disk import RealDisk
from tests.fakes import FakePeer
from tests.integration.controller_quorum import ADDRESSES, GROUP, Tool, configs, leader_of, quorum, tool
from tests.waiting import wait_until


async def test_three_controllers_elect_one_leader_and_all_name_it(tmp_path: Path) -> None:
    async with quorum(tmp_path) as controllers, tool() as ask:
        leader = await leader_of(controllers)
        own = leader.config.controller_d_leger_self_id
        await wait_until(lambda: {each.status.leader for each in controllers} == {own}, timeout_s=60)
        for each in controllers:
            found = await ask.call(each.address, RequestCode.CONTROLLER_GET_METADATA_INFO)
            assert found.ext is not None
            assert found.ext["controllerLeaderId"] == own
            assert found.ext["controllerLeaderAddress"] == leader.address
            assert found.ext["isLeader"] == ("true" if each is leader else "false")
            assert found.ext["peers"] == "".join(f"{i}:{a};" for i, a in leader.config.peers.items())


async def test_a_follower_refuses_what_the_leader_answers(tmp_path: Path) -> None:
    async with quorum(tmp_path) as controllers, tool() as ask:
        leader = await leader_of(controllers)
        follower = next(each for each in controllers if each is not leader)
        for code in (1001, 1002, 1003, 1004, 1006, 1011, 1012, 1013):
            answer = await ask.call(follower.address, code, brokerName=GROUP)
            assert answer.code == ControllerCode.NOT_LEADER, code
            assert answer.remark == "The controller is not in leader state"


async def test_a_group_forms_and_its_first_broker_becomes_master(tmp_path: Path) -> None:
    async with quorum(tmp_path) as controllers, tool() as ask:
        at = (await leader_of(controllers)).address
        common = {"clusterName": "C", "brokerName": GROUP}
        first = await ask.call(at, RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, **common)
        assert first.ext == {**common, "nextBrokerId": "1"}
        registered = await ask.join(at, 1)
        assert registered.ext == common
        assert registered.body == b'{"syncStateSet":[],"syncStateSetEpoch":0}'
        elected = await ask.elect(at, 1)
        assert elected.ext == {
            "masterBrokerId": "1", "masterAddress": ADDRESSES[1], "masterEpoch": "1", "syncStateSetEpoch": "1",
        }  # fmt: skip
        assert elected.body == (
            b'{"brokerMemberGroup":{"brokerAddrs":{1:"127.0.0.1:1"},"brokerName":"broker-a","cluster":"C"},'
            b'"syncStateSet":[1]}'
        )
        await ask.beat(at, 1, epoch=1)
        second = await ask.join(at, 2)
        assert second.ext == {**common, **elected.ext}
        await ask.beat(at, 2)
        assert (await ask.elect(at, 2)).code == ControllerCode.MASTER_STILL_EXIST
        altered = await ask.alter(at, 1, 1, [1, 2], 1)
        assert altered.ext == {"newSyncStateSetEpoch": "2"}
        assert altered.body == b'{"syncStateSet":[1,2],"syncStateSetEpoch":2}'
        assert (await ask.alter(at, 1, 1, [1], 1)).code == ControllerCode.FENCED_SYNC_STATE_SET_EPOCH
        same = await ask.alter(at, 1, 1, [1, 2], 2)
        assert same.code == ControllerCode.ALTER_SYNC_STATE_SET_FAILED, "as RocketMQ's brokers are answered"
        renewed = await ask.alter(at, 1, 1, [1, 2], 2, newSetEpochWanted="true")
        assert renewed.ext == {"newSyncStateSetEpoch": "3"}
        assert renewed.body == b'{"syncStateSet":[1,2],"syncStateSetEpoch":3}'
        found = await ask.info(at)
        assert found.ext == {"masterBrokerId": "1", "masterAddress": ADDRESSES[1], "masterEpoch": "1"}
        data = await ask.call(at, RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, b'["broker-a"]')
        table = loads(data.body)["replicasInfoTable"][GROUP]
        assert [each["brokerId"] for each in table["inSyncReplicas"]] == [1, 2]
        assert table["masterEpoch"] == 1
        assert table["notInSyncReplicas"] == []


async def group_of_two(ask: Tool, at: str, **beat: object) -> None:
    for broker_id in (1, 2):
        await ask.join(at, broker_id)
        if broker_id == 1:
            await ask.elect(at, 1)
        await ask.beat(at, broker_id, epoch=1, **beat)
    assert (await ask.alter(at, 1, 1, [1, 2], 1)).code == 0


async def test_a_master_whose_connection_ends_is_replaced(tmp_path: Path) -> None:
    async with quorum(tmp_path, 1) as controllers, tool() as ask:
        at = controllers[0].address
        await group_of_two(ask, at)
        async with tool() as master:
            await master.beat(at, 1, epoch=1)

        async def replaced() -> bool:
            found = await ask.info(at)
            return found.ext is not None and found.ext.get("masterBrokerId") == "2"

        await wait_until(replaced, timeout_s=60, passing=(AerobeeError,))
        found = await ask.info(at)
        assert found.ext is not None
        assert found.ext["masterEpoch"] == "2"
        assert loads(found.body) == {"syncStateSet": [2], "syncStateSetEpoch": 3}


async def test_a_master_with_a_lease_is_replaced_after_it_and_never_before(tmp_path: Path) -> None:
    clock = SystemClock()
    async with quorum(tmp_path, 1, master_lease_millis=1_500) as controllers, tool() as ask:
        at = controllers[0].address
        await group_of_two(ask, at)
        granted: list[float] = []

        async def has_lease() -> bool:
            async with tool() as master:  # it is closed right after the grant
                sent = clock.monotonic()
                answer = await master.beat(at, 1, epoch=1, leaseWanted="true")
                assert answer.ext is not None
                if answer.ext["leaseMillis"] == "0":
                    return False
                assert answer.ext["leaseMillis"] == "1500"
                assert answer.ext["masterEpoch"] == "1"
                granted.append(sent + 1.5)
                return True

        await wait_until(has_lease, timeout_s=60, passing=(AerobeeError,))

        async def replaced() -> bool:
            found = await ask.info(at)
            return found.ext is not None and found.ext.get("masterBrokerId") == "2"

        await wait_until(replaced, timeout_s=60, passing=(AerobeeError,))
        assert clock.monotonic() > granted[-1]


async def test_a_lease_is_for_the_master_alone(tmp_path: Path) -> None:
    async with quorum(tmp_path, 1) as controllers, tool() as ask:
        at = controllers[0].address
        await group_of_two(ask, at)
        for broker_id, epoch in ((2, 1), (1, 0), (1, 2)):
            answer = await ask.beat(at, broker_id, epoch=epoch, leaseWanted="true")
            assert (answer.ext or {})["leaseMillis"] == "0", (broker_id, epoch)


async def test_two_brokers_do_not_go_by_one_id(tmp_path: Path) -> None:
    """As with a directory that was copied: both would be master of one epoch, and acknowledge."""
    async with quorum(tmp_path, 1) as controllers, tool() as ask:
        at = controllers[0].address
        await group_of_two(ask, at)
        names = {"clusterName": "C", "brokerName": GROUP, "brokerId": 1}
        beat = {**names, "brokerAddr": "127.0.0.1:9", "epoch": 1, "leaseWanted": "true"}
        async with tool() as master:
            await master.beat(at, 1, epoch=1)
            async with tool() as copy:
                answer = await copy.call(at, RequestCode.BROKER_HEARTBEAT, **beat)
                assert answer.code == ControllerCode.BROKER_ID_INVALID
                assert "127.0.0.1:1" in (answer.remark or "")
                code = RequestCode.CONTROLLER_REGISTER_BROKER
                answer = await copy.call(at, code, **names, brokerAddress="127.0.0.1:9")
                assert answer.code == ControllerCode.BROKER_ID_INVALID
            assert controllers[0]._masters.is_alive(GROUP, 1), "the copy's connection is not the master's"
        await wait_until(lambda: not controllers[0]._masters.is_alive(GROUP, 1))
        answer = await ask.call(
            at, RequestCode.CONTROLLER_REGISTER_BROKER, **names, brokerAddress="127.0.0.1:9"
        )
        assert answer.code == 0, "it moved"


async def test_only_a_living_broker_sets_its_ha_address(tmp_path: Path) -> None:
    async with quorum(tmp_path, 1) as controllers, tool() as ask, tool() as peer:
        address = (await leader_of(controllers)).address
        await ask.join(address, 1)
        assert (await ask.beat(address, 1, haAddress="10.0.0.1:2")).code == 0
        forged = await peer.beat(address, 1, haAddress="10.6.6.6:2")
        assert forged.code == ControllerCode.BROKER_ID_INVALID, forged
        assert (await ask.beat(address, 1, haAddress="10.0.0.1:2")).code == 0
        answer = await ask.call(
            address, RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, json.dumps([GROUP]).encode()
        )
        (row,) = loads(answer.body)["replicasInfoTable"][GROUP]["notInSyncReplicas"]
        assert row["haAddress"] == "10.0.0.1:2"


async def test_heartbeats_of_brokers_without_an_id_stop_no_election(tmp_path: Path) -> None:
    async with quorum(tmp_path, 1) as controllers, tool() as ask:
        at = controllers[0].address
        await group_of_two(ask, at)
        for broker_id in range(3, REPLICAS_MAX + 10):
            await ask.call(
                at, RequestCode.BROKER_HEARTBEAT, clusterName="C", brokerName=GROUP, brokerId=broker_id
            )
        answer = await ask.elect(at, 2, designate=True)
        assert answer.code == 0, answer.remark
        assert (answer.ext or {})["masterBrokerId"] == "2"


async def test_names_of_brokers_that_are_gone_do_not_stay(tmp_path: Path) -> None:
    async with quorum(tmp_path, 1, scan_not_active_broker_interval=20) as controllers, tool() as ask:
        at = controllers[0].address
        for number in range(50):
            await ask.call(
                at,
                RequestCode.BROKER_HEARTBEAT,
                clusterName="C",
                brokerName=f"g{number}",
                brokerId=1,
                heartbeatTimeoutMills=1,
            )
        masters = controllers[0]._masters
        await wait_until(lambda: not masters._via and not any(masters._by_peer.values()))


async def test_a_master_whose_disk_takes_no_writes_is_replaced(tmp_path: Path) -> None:
    async with quorum(tmp_path, 1) as controllers, tool() as ask:
        at = controllers[0].address
        await group_of_two(ask, at)
        await ask.beat(at, 1, epoch=1, diskSound="false")

        async def replaced() -> bool:
            found = await ask.info(at)
            return found.ext is not None and found.ext.get("masterBrokerId") == "2"

        await wait_until(replaced, timeout_s=60, passing=(AerobeeError,))


async def test_no_broker_outside_the_sync_state_set_becomes_master(tmp_path: Path) -> None:
    async with quorum(tmp_path, 1) as controllers, tool() as ask:
        at = controllers[0].address
        await ask.join(at, 1)
        await ask.elect(at, 1)
        await ask.join(at, 2)
        await ask.beat(at, 2)
        async with tool() as master:
            await master.beat(at, 1, epoch=1)

        async def masterless() -> bool:
            found = await ask.info(at)
            return found.ext == {"masterEpoch": "2"}

        await wait_until(masterless, timeout_s=60, passing=(AerobeeError,))
        assert (await ask.elect(at, 2)).code == ControllerCode.ELECT_MASTER_FAILED
        # The one in sync comes back and leads again, in a new epoch, without being asked.
        await ask.beat(at, 1, epoch=1)

        async def back() -> bool:
            found = await ask.info(at)
            return found.ext is not None and found.ext.get("masterBrokerId") == "1"

        await wait_until(back, timeout_s=60, passing=(AerobeeError,))


async def test_groups_survive_the_death_of_the_leader_and_a_restart_of_all(tmp_path: Path) -> None:
    settings = configs(tmp_path, 3)
    async with tool() as ask:
        controllers = [Controller(config) for config in settings]
        for each in controllers:
            await each.start()
        leader = await leader_of(controllers)
        await group_of_two(ask, leader.address)
        await leader.stop()
        rest = [each for each in controllers if each is not leader]
        second = await leader_of(rest)
        found = await ask.info(second.address)
        assert loads(found.body) == {"syncStateSet": [1, 2], "syncStateSetEpoch": 2}
        for each in rest:
            await each.stop()
        async with AsyncExitStack() as stack:
            fresh = [await stack.enter_async_context(Controller(config)) for config in settings]
            third = await leader_of(fresh)
            found = await ask.info(third.address)
            assert loads(found.body) == {"syncStateSet": [1, 2], "syncStateSetEpoch": 2}
            assert found.ext is not None
            assert found.ext["masterBrokerId"] == "1"


async def test_a_leader_that_is_stopped_hands_over_first(tmp_path: Path) -> None:
    async with quorum(tmp_path) as controllers:
        leader = await leader_of(controllers)
        term = leader.status.term
        rest = [each for each in controllers if each is not leader]
        await wait_until(lambda: all(each.status.leader for each in rest), timeout_s=60)
        await leader.stop()
        # An order to stand, not a missed leader: the very next term, and no pre-vote in between.
        await wait_until(lambda: any(each.status.is_serving for each in rest), timeout_s=60)
        assert max(each.status.term for each in rest) == term + 1


async def test_a_leader_without_a_majority_answers_nothing_as_if_it_led(tmp_path: Path) -> None:
    async with quorum(tmp_path) as controllers, tool() as ask:
        leader = await leader_of(controllers)
        await ask.join(leader.address, 1)
        for each in controllers:
            if each is not leader:
                await each.stop()
        answer = await ask.info(leader.address)
        # Within its lease it may still know; afterwards never.
        assert answer.code in (0, ControllerCode.NOT_LEADER, ResponseCode.SYSTEM_ERROR)
        await wait_until(lambda: not leader.status.is_leader, timeout_s=60)
        assert (await ask.info(leader.address)).code == ControllerCode.NOT_LEADER


async def test_a_controller_is_taken_in_and_another_let_go(tmp_path: Path) -> None:
    settings = configs(tmp_path, 4)
    joining = settings.pop()
    # The three know the fourth one's address, and are members by themselves.
    first = [
        ControllerConfig(
            controller_d_leger_group="quorum",
            controller_d_leger_peers=";".join(
                part for part in each.controller_d_leger_peers.split(";") if not part.startswith("n3-")
            ),
            controller_d_leger_self_id=each.controller_d_leger_self_id,
            controller_store_path=each.controller_store_path,
            bind_address="127.0.0.1",
        )
        for each in settings
    ]
    async with tool() as ask, AsyncExitStack() as stack:
        early = [Controller(config) for config in first]
        for each in early:
            await each.start()
        await ask.join((await leader_of(early)).address, 1)
        for each in early:
            await each.stop()
        controllers = [await stack.enter_async_context(Controller(config)) for config in settings]
        fields = {name: getattr(joining, name) for name in ControllerConfig.__dataclass_fields__}
        new = await stack.enter_async_context(
            Controller(ControllerConfig(**{**fields, "controller_joins_quorum": True}))
        )
        leader = await leader_of(controllers)

        async def change(action: str, member: str) -> bool:
            answer = await ask.call(
                (await leader_of(controllers)).address,
                RequestCode.AEROBEE_CHANGE_QUORUM,
                action=action,
                member=member,
            )
            return answer.code == 0

        assert leader.status.voters == ("n0", "n1", "n2")
        await wait_until(lambda: change("addLearner", "n3"), timeout_s=60, passing=(AerobeeError,))
        await wait_until(lambda: change("promote", "n3"), timeout_s=60, passing=(AerobeeError,))
        gone = next(each for each in controllers if not each.status.is_leader)
        await wait_until(
            lambda: change("remove", gone.config.controller_d_leger_self_id),
            timeout_s=60,
            passing=(AerobeeError,),
        )
        await wait_until(lambda: "n3" in new.status.voters and len(new.status.voters) == 3, timeout_s=60)
        await wait_until(lambda: GROUP in new.state.groups, timeout_s=60)


async def test_a_controller_with_an_empty_disk_waits_until_it_is_added_again(tmp_path: Path) -> None:
    settings = configs(tmp_path, 3)
    async with tool() as ask, AsyncExitStack() as stack:
        controllers = [Controller(config) for config in settings]
        for each in controllers:
            await each.start()
            stack.push_async_callback(each.stop)
        leader = await leader_of(controllers)
        await ask.join(leader.address, 1)
        lost = next(each for each in controllers if each is not leader)
        name = lost.config.controller_d_leger_self_id
        await wait_until(
            lambda: all(len(each._raft._replica.node.log.membership.identities) == 3 for each in controllers)  # type: ignore[union-attr]
        )
        await lost.stop()
        shutil.rmtree(lost.config.directory)
        again = await stack.enter_async_context(Controller(lost.config))
        await wait_until(
            lambda: again.status.is_unrecognized, "it is notified that it is another one", timeout_s=60
        )
        assert f"remove-controller {name}" in again.health.reasons()["member"]
        assert GROUP not in again.state.groups

        async def change(action: str) -> bool:
            answer = await ask.call(
                leader.address, RequestCode.AEROBEE_CHANGE_QUORUM, action=action, member=name
            )
            return answer.code == 0

        for action in ("remove", "addLearner", "promote"):
            await wait_until(lambda: change(action), timeout_s=60, passing=(AerobeeError,))  # noqa: B023
        await wait_until(lambda: GROUP in again.state.groups, timeout_s=60)
        await wait_until(
            lambda: name in again.status.voters and not again.status.is_unrecognized, timeout_s=60
        )


async def test_a_raft_frame_from_another_host_deposes_no_leader(tmp_path: Path) -> None:
    async with quorum(tmp_path) as controllers:
        leader = await leader_of(controllers)
        name, term = leader.config.controller_d_leger_self_id, leader.status.term
        forged = next(each for each in ("n0", "n1", "n2") if each != name)
        frame = encode_message(
            AppendRequest(
                source=forged,
                target=name,
                term=term + 1,
                prev_index=0,
                prev_term=0,
                commit_index=0,
                round=1,
                entries=(),
            ),
            "quorum",
        )
        host, port = split_address(leader.address)
        command = RemotingCommand(RequestCode.AEROBEE_RAFT_MESSAGE, body=frame)
        reader, writer = await asyncio.open_connection(host, port, local_addr=("127.0.0.2", 0))
        writer.write(encode_frame(command))
        size = int.from_bytes(await reader.readexactly(4), "big")
        answer = decode_frame(size.to_bytes(4, "big") + await reader.readexactly(size))
        assert answer.code == ResponseCode.NO_PERMISSION
        assert "controllerDLegerPeers" in (answer.remark or "")
        async with tool() as ask:
            assert (await ask.join(leader.address, 1)).code == 0
        assert (leader.status.is_leader, leader.status.term) == (True, term)
        writer.close()


async def test_a_recorded_request_is_not_taken_again(tmp_path: Path) -> None:
    """Nor under another code: RocketMQ's signature covers neither."""
    pair = '{"accessKey":"inner","secretKey":"innersecret"}'
    keyed = {"authentication_enabled": True, "inner_client_authentication_credentials": pair}
    key = Credentials("inner", "innersecret")
    config = configs(tmp_path, 1, **keyed)[0]
    client = RemotingClient(clock=SystemClock(), network=AsyncioNetwork(), credentials=key)
    plain = RemotingClient(clock=SystemClock(), network=AsyncioNetwork())
    async with Controller(config) as controller:
        await leader_of([controller])
        address = controller.address
        action = {"action": "addLearner", "member": "n9"}
        signed = await client.invoke(address, RemotingCommand(RequestCode.AEROBEE_CHANGE_QUORUM, action))
        assert signed.code == ResponseCode.NO_PERMISSION, "a signature of RocketMQ's is not enough for it"
        names = {"clusterName": "C", "brokerName": GROUP}
        rocketmq = RemotingCommand(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, names)
        assert (await client.invoke(address, rocketmq)).code == 0, "RocketMQ's brokers sign like this"
        await prove(client, address, 60)
        request = RemotingCommand(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, dict(names))
        assert (await client.invoke(address, request)).code == 0
        assert PROOF in (request.ext or {})
        for code in (request.code, RequestCode.CLEAN_BROKER_DATA):
            recorded = RemotingCommand(code, dict(request.ext or {}), request.body)
            assert (await plain.invoke(address, recorded)).code == ResponseCode.NO_PERMISSION
        connection = client.connection_to(address)
        assert connection is not None
        connection.proofs = None
        again = RemotingCommand(request.code, dict(request.ext or {}), request.body)
        assert (await client.invoke(address, again)).code == ResponseCode.NO_PERMISSION, "on its connection"
        await client.close()
        client = RemotingClient(clock=SystemClock(), network=AsyncioNetwork(), credentials=key)
    required = replace(config, authentication_proof_required=True, controller_store_path=str(tmp_path / "r"))
    async with Controller(required) as controller:
        await leader_of([controller])
        rocketmq = RemotingCommand(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, dict(names))
        assert (await client.invoke(address, rocketmq)).code == ResponseCode.NO_PERMISSION
        await prove(client, address, 60)
        rocketmq = RemotingCommand(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, dict(names))
        assert (await client.invoke(address, rocketmq)).code == 0
    await client.close()
    await plain.close()


async def test_controllers_with_a_key_lead_and_change_their_members(tmp_path: Path) -> None:
    pair = '{"accessKey":"inner","secretKey":"innersecret"}'
    keyed = {
        "authentication_enabled": True,
        "authentication_proof_required": True,
        "inner_client_authentication_credentials": pair,
    }
    async with AsyncExitStack() as stack:
        controllers = [
            await stack.enter_async_context(Controller(config)) for config in configs(tmp_path, 3, **keyed)
        ]
        leader = await leader_of(controllers)
        key = Credentials("inner", "innersecret")
        client = RemotingClient(clock=SystemClock(), network=AsyncioNetwork(), credentials=key)
        quorum_admin = QuorumAdmin(client, [each.address for each in controllers])
        assert (await quorum_admin.status())["isServing"]
        other = next(each for each in controllers if each is not leader)
        name = other.config.controller_d_leger_self_id
        await quorum_admin.call(RequestCode.AEROBEE_CHANGE_QUORUM, {"action": "transfer", "member": name})
        await wait_until(lambda: other.status.is_serving, "it leads", timeout_s=60)
        await client.close()


async def test_settings_of_a_controller_are_shown_and_changed(tmp_path: Path) -> None:
    async with quorum(tmp_path, 1) as controllers, tool() as ask:
        at = controllers[0].address
        shown = await ask.call(at, RequestCode.GET_CONTROLLER_CONFIG)
        assert b"controllerDLegerSelfId=n0\n" in shown.body
        assert b"enableElectUncleanMaster=false\n" in shown.body
        assert (
            await ask.call(at, RequestCode.UPDATE_CONTROLLER_CONFIG, b"enableElectUncleanMaster=true")
        ).code == 0
        assert controllers[0].config.enable_elect_unclean_master
        for body, code in (
            (b"configStorePath=/etc/passwd", ResponseCode.NO_PERMISSION),
            (b"controllerStorePath=/tmp/x", ResponseCode.INVALID_PARAMETER),
            (b"nonsense=1", ResponseCode.INVALID_PARAMETER),
            (b"scanNotActiveBrokerInterval=0", ResponseCode.INVALID_PARAMETER),
        ):
            assert (await ask.call(at, RequestCode.UPDATE_CONTROLLER_CONFIG, body)).code == code, body


async def test_a_changed_setting_leaves_the_rest_of_the_configuration_file(tmp_path: Path) -> None:
    path = tmp_path / "controller.conf"
    secret = '{"accessKey":"quorum","secretKey":"not in an answer"}'
    text = (
        "# ours\ncontrollerDLegerGroup=g\ncontrollerDLegerPeers=n0-127.0.0.1:9878\ncontrollerDLegerSelfId=n0\n"
        f"authenticationEnabled=true\ninnerClientAuthenticationCredentials={secret}\nscanNotActiveBrokerInterval=7000\n"
    )
    path.write_text(text)
    changes = b"scanNotActiveBrokerInterval=9000\nenableElectUncleanMaster=true\n"
    config = replace(build(ControllerConfig, read_properties(path)), config_store_path=str(path))
    live = LiveControllerConfig(config)
    calls = config_calls(live, RealDisk())
    for _ in range(2):
        reply = await calls.update(
            FakePeer(), RemotingCommand(RequestCode.UPDATE_CONTROLLER_CONFIG, body=changes)
        )
        assert reply.code == 0
        assert path.read_text() == text.replace("=7000", "=9000") + "enableElectUncleanMaster=true\n"
    assert replace(build(ControllerConfig, read_properties(path)), config_store_path=str(path)) == live.value
    path.write_bytes(b"\xff")
    with pytest.raises(StoreError, match=r"controller\.conf"):
        await calls.update(FakePeer(), RemotingCommand(RequestCode.UPDATE_CONTROLLER_CONFIG, body=changes))
    assert path.read_bytes() == b"\xff"


async def test_metadata_of_living_brokers_is_not_cleaned(tmp_path: Path) -> None:
    async with quorum(tmp_path, 1) as controllers, tool() as ask:
        at = controllers[0].address
        await group_of_two(ask, at)
        refused = await ask.call(at, RequestCode.CLEAN_BROKER_DATA, clusterName="C", brokerName=GROUP)
        assert refused.code == ControllerCode.INVALID_CLEAN_BROKER_METADATA
        cleaned = await ask.call(
            at,
            RequestCode.CLEAN_BROKER_DATA,
            clusterName="C",
            brokerName=GROUP,
            brokerControllerIdsToClean="2",
            isCleanLivingBroker="true",
        )
        assert cleaned.code == 0
        assert loads((await ask.info(at)).body) == {"syncStateSet": [1], "syncStateSetEpoch": 3}


async def test_two_controllers_do_not_share_a_directory(tmp_path: Path) -> None:
    config = configs(tmp_path, 1)[0]
    async with Controller(config):
        with pytest.raises(StoreLocked):
            await Controller(config).start()


async def test_damaged_requests_leave_the_controller_serving(tmp_path: Path) -> None:
    async with quorum(tmp_path, 1) as controllers, tool() as ask:
        at = controllers[0].address
        for code, ext, body in (
            (1001, {"brokerName": GROUP, "masterBrokerId": "x", "masterEpoch": "1"}, b"{}"),
            (1001, {"brokerName": GROUP, "masterBrokerId": "1", "masterEpoch": "1"}, b"[1]"),
            (1002, {"brokerName": GROUP, "brokerId": str(1 << 62)}, b""),
            (1003, {"brokerName": "x" * 300}, b""),
            (1006, {}, b'{"a":1}'),
            (1011, {"brokerName": GROUP, "brokerControllerIdsToClean": "1;two"}, b""),
            (1012, {}, b""),
            (1013, {"clusterName": "C", "brokerName": GROUP, "appliedBrokerId": "1"}, b""),
            (904, {"clusterName": "C", "brokerName": GROUP, "brokerId": "-5"}, b""),
            (911_002, {"action": "explode", "member": "n0"}, b""),
        ):
            assert (await ask.call(at, code, body, **ext)).code != 0, code
        assert (await ask.call(at, 1012, clusterName="C", brokerName=GROUP)).code == 0
