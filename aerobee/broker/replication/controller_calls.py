"""GET_BROKER_EPOCH_CACHE 1007 and NOTIFY_BROKER_ROLE_CHANGED 1008. Source: AdminBrokerProcessor (RocketMQ)."""

from __future__ import annotations

from collections.abc import Mapping

from aerobee.broker.replication.controller_agent import ControllerAgent
from aerobee.broker.replication.controller_files import END_OF_LAST, Epochs
from aerobee.broker.state.identity import BrokerIdentity
from aerobee.broker.state.role import RoleState
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.fastjson import dumps
from aerobee.remoting.peer import Handler, Peer
from aerobee.remoting.protocol import MASTER_ID
from aerobee.store.message_store import MessageStore


class ControllerModeCalls:
    """Requests of controllers and mqadmin to a broker in controller mode."""

    def __init__(
        self,
        *,
        agent: ControllerAgent,
        epochs: Epochs,
        identity: BrokerIdentity,
        role: RoleState,
        store: MessageStore,
    ) -> None:
        self._agent = agent
        self._epochs = epochs
        self._identity = identity
        self._role = role
        self._store = store

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.GET_BROKER_EPOCH_CACHE: self.epochs,
            RequestCode.NOTIFY_BROKER_ROLE_CHANGED: self.role_changed,
        }

    def epochs(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """The epochs of the log; the last one has no end yet."""
        entries = self._epochs.entries
        ends = [*(each.start_offset for each in entries[1:]), END_OF_LAST]
        body = {
            "brokerId": MASTER_ID if self._role.is_master else self._agent.broker_id,
            "brokerName": self._identity.name,
            "clusterName": self._identity.cluster,
            "epochList": [
                {"endOffset": end, "epoch": each.epoch, "startOffset": each.start_offset}
                for each, end in zip(entries, ends, strict=False)
            ],
            "maxOffset": self._store.log.end,
        }
        return request.reply(body=dumps(body))

    def role_changed(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """A hint from any sender: this broker queries the controllers before it changes its role."""
        self._agent.hint()
        return request.reply()
