"""Queues of every broker for PullMessage, UpdateOffset, GetOffset and QueryOffset: a request goes to the broker that the queue names."""

from __future__ import annotations

from aerobee.broker.grpc.refusal import RpcRefused
from aerobee.broker.grpc.rpc import RpcContext
from aerobee.client.consumer.pop_calls import ANSWER_MARGIN_S
from aerobee.grpc.proto import messages as pb
from aerobee.proxy.cluster import ProxyCluster
from aerobee.remoting.body.route import QueueData
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.command import RemotingCommand


class ProxyQueues:
    """A QueueRequests (broker/grpc/pull_rpcs.py)."""

    def __init__(self, cluster: ProxyCluster) -> None:
        self._cluster = cluster

    async def topic(self, name: str, broker_name: str) -> TopicConfig | None:
        """The topic as the route shows it at this broker. Raises RpcRefused, AerobeeError."""
        data = await self._queue_data(name, broker_name)
        return TopicConfig(name, data.read_queue_nums, data.write_queue_nums, perm=data.perm)

    async def _queue_data(self, topic: str, broker_name: str) -> QueueData:
        """Without a name the topic's only broker. Raises RpcRefused."""
        datas = (await self._cluster.route(topic)).queue_datas
        found = [data for data in datas if broker_name in ("", data.broker_name)]
        if len(found) != 1:
            text = (
                f"topic {topic} is at {len(datas)} brokers, and at none that is called {broker_name[:80]!r}"
            )
            raise RpcRefused(pb.BAD_REQUEST, text)
        return found[0]

    async def reply(
        self, context: RpcContext, broker_name: str, code: int, ext: dict[str, str], *, hold_ms: int = 0
    ) -> RemotingCommand:
        """The broker's reply, whatever its code. Raises TransportError, RouteError."""
        session = self._cluster.session
        broker_name = (await self._queue_data(ext["topic"], broker_name)).broker_name
        address = await session.broker_address(broker_name, ext["topic"])
        request = RemotingCommand(code, {**ext, "bname": broker_name})
        timeout_s = hold_ms / 1000 + ANSWER_MARGIN_S if hold_ms else session.config.request_timeout_s
        return await session.call(address, request, timeout_s=timeout_s)
