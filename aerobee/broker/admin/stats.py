"""VIEW_BROKER_STATS_DATA 315: one counter of the broker in its three windows. Source: AdminBrokerProcessor (RocketMQ)."""

from __future__ import annotations

from aerobee.broker.metrics.stats import BrokerStats, windows_json
from aerobee.remoting import fastjson
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Handler, Peer


class AdminStatsCalls:
    """Answers 315."""

    def __init__(self, *, stats: BrokerStats) -> None:
        self._stats = stats

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.VIEW_BROKER_STATS_DATA: self.view}

    def view(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """315: e.g. statsName TOPIC_PUT_NUMS and the topic as statsKey; code 1 for an unknown counter."""
        name, key = request.text("statsName"), request.text("statsKey")
        windows = self._stats.windows(name, key)
        if windows is None:
            return request.reply(ResponseCode.SYSTEM_ERROR, remark=f"The stats <{name}> <{key}> not exist")
        return request.reply(body=fastjson.dumps(windows_json(windows)))
