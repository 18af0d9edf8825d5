"""Aerobee-specific requests to a quorum: its state (911001), and a change of its members (911002).

A change is one step: add a controller as a learner, promote a learner to a voter, remove a controller, or transfer the
leadership.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from aerobee.errors import MembershipRefused, NotLeader, QuorumBusy
from aerobee.ha.controller.call_shares import CallShares
from aerobee.ha.controller.calls import CALL_TIMEOUT_S, NOT_LEADER_REMARK
from aerobee.ha.controller.codes import ControllerCode
from aerobee.ha.controller.config import LiveControllerConfig
from aerobee.ha.controller.masters import Masters
from aerobee.ha.controller.state import ControllerState, Group
from aerobee.ha.raft.node import RaftNode
from aerobee.ha.raft.raft_service import RaftService
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.fastjson import dumps
from aerobee.remoting.peer import Handler, Peer

BROKERS_SHOWN_MAX = 8_192  # of one answer: some 12 ms and 1 MB. Every peer without a key may apply for ids


class MembershipCalls:
    """Handlers of the membership requests at one controller."""

    def __init__(
        self,
        *,
        config: LiveControllerConfig,
        state: ControllerState,
        raft: RaftService,
        masters: Masters,
        shares: CallShares,
    ) -> None:
        self._config = config
        self._state = state
        self._raft = raft
        self._masters = masters
        self._shares = shares

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.AEROBEE_QUORUM_STATUS: self.status,
            RequestCode.AEROBEE_CHANGE_QUORUM: self.change,
        }

    def status(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """This controller's view; that of the leader is the newest."""
        status, config = self._raft.status, self._config.value
        groups = []
        shown, left_out = _shown(self._state.groups.values())
        for group in shown:
            name = group.broker_name
            beats = {each: self._masters.liveness.last(name, each) for each in sorted(group.replicas)}
            groups.append(
                {
                    "clusterName": group.cluster_name,
                    "brokerName": name,
                    "masterId": group.master_id,
                    "masterEpoch": group.master_epoch,
                    "syncStateSetEpoch": group.set_epoch,
                    "brokers": [
                        {
                            "brokerId": each,
                            "address": group.replicas[each].address,
                            "isAlive": self._masters.is_alive(name, each),
                            "isInSync": each in group.in_sync,
                            "isDiskSound": beat is None or beat.is_disk_sound,
                            "epoch": -1 if beat is None else beat.epoch,
                            "maxOffset": -1 if beat is None else beat.max_offset,
                            "confirmOffset": -1 if beat is None else beat.confirm_offset,
                        }
                        for each, beat in beats.items()
                    ],
                }
            )
        body = {
            "selfId": config.controller_d_leger_self_id,
            "group": config.controller_d_leger_group,
            "leaderId": status.leader,
            "isLeader": status.is_leader,
            "isServing": self._raft.is_leading_surely,
            "term": status.term,
            "voters": list(status.voters),
            "learners": list(status.learners),
            "peers": config.peers,
            "brokerGroups": groups,
            "brokerGroupsLeftOut": left_out,
        }
        return request.reply(body=dumps(body))

    async def change(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        action, member = request.text("action"), request.text("member")
        steps = {
            "addLearner": lambda node, now_ms: node.add_learner(member, now_ms),
            "promote": lambda node, now_ms: _promote(node, member, now_ms),
            "remove": lambda node, now_ms: node.remove(member, now_ms),
            "transfer": lambda node, now_ms: node.transfer(member, now_ms),
        }
        if action not in steps:
            return request.reply(
                ResponseCode.INVALID_PARAMETER,
                remark=f"action is {action[:40]!r}, expected {', '.join(steps)}",
            )
        if action == "addLearner" and member not in self._config.value.peers:
            return request.reply(
                ResponseCode.INVALID_PARAMETER,
                remark=f"{member[:80]} is not in controllerDLegerPeers of this controller, which could not reach it",
            )
        try:
            with self._shares.share(peer):
                async with asyncio.timeout(CALL_TIMEOUT_S):
                    await self._raft.confirm()
                    await self._raft.run(steps[action])
        except NotLeader:
            return request.reply(ControllerCode.NOT_LEADER, remark=NOT_LEADER_REMARK)
        except (QuorumBusy, MembershipRefused) as error:
            return request.reply(ResponseCode.SYSTEM_BUSY, remark=str(error))
        except TimeoutError:
            return request.reply(
                ResponseCode.SYSTEM_ERROR, remark="a majority of the controllers gave no answer"
            )
        return request.reply()


def _shown(groups: Collection[Group]) -> tuple[list[Group], int]:
    """The groups of one answer, those that have a master first, and how many are left out."""
    shown: list[Group] = []
    count = 0
    for has_master in (True, False):
        for group in groups:
            if bool(group.master_id) is has_master and count + len(group.replicas) <= BROKERS_SHOWN_MAX:
                shown.append(group)
                count += max(1, len(group.replicas))
    return shown, len(groups) - len(shown)


def _promote(node: RaftNode, member: str, now_ms: float) -> object:
    if member not in node.progress():
        raise MembershipRefused(f"{member} is not a learner: add it as one first")
    return node.promote(member, now_ms)
