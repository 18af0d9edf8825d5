"""Inspects and changes a cluster: topics, groups, messages, brokers. Follows DefaultMQAdminExt."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from types import TracebackType
from typing import Self

from aerobee.client.admin.access import AccessCalls
from aerobee.client.admin.brokers import BrokerCalls
from aerobee.client.admin.dead_letters import DeadLetterCalls
from aerobee.client.admin.explain import ExplainCalls
from aerobee.client.admin.groups import GroupCalls
from aerobee.client.admin.offsets import OffsetCalls
from aerobee.client.admin.pops import PopModeCalls
from aerobee.client.admin.schedules import ScheduleCalls
from aerobee.client.admin.static_topics import StaticTopicCalls
from aerobee.client.admin.timers import TimerCalls
from aerobee.client.admin.topics import TopicCalls
from aerobee.client.admin.trace import TraceCalls
from aerobee.client.admin.transactions import TransactionCalls
from aerobee.client.admin.upkeep import UpkeepCalls
from aerobee.client.base.checks import config_of
from aerobee.client.base.config import AdminConfig, ClientConfig
from aerobee.client.session.session import Session
from aerobee.clock import Clock
from aerobee.network import Network


class Admin(
    TopicCalls,
    StaticTopicCalls,
    GroupCalls,
    OffsetCalls,
    DeadLetterCalls,
    ExplainCalls,
    TraceCalls,
    TransactionCalls,
    TimerCalls,
    ScheduleCalls,
    PopModeCalls,
    BrokerCalls,
    AccessCalls,
    UpkeepCalls,
):
    """`async with Admin("127.0.0.1:9876") as admin: await admin.topics()`.

    All calls raise RemoteError when a server refuses, and ConnectFailed, ConnectionLost or RequestTimeout when no
    server answers. Admin joins no group and sends no heartbeats.
    """

    def __init__(
        self,
        nameservers: str | Sequence[str],
        *,
        config: AdminConfig | None = None,
        client: ClientConfig | None = None,
        clock: Clock | None = None,
        network: Network | None = None,
        random: Random | None = None,
    ) -> None:
        self.config = config_of(AdminConfig, config, "config")
        self._timeout_s = self.config.request_timeout_s
        self._session = Session(
            nameservers,
            config=config_of(ClientConfig, client, "client"),
            clock=clock,
            network=network,
            random=random,
        )

    async def start(self) -> None:
        """Open the client; the first call connects to a NameServer."""
        await self._session.start()

    async def close(self) -> None:
        """Close the connections. A second call does nothing."""
        await self._session.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
