"""Messages between the controllers of a quorum: one connection to each, with a separate queue.

A message is the body of an AEROBEE_RAFT_MESSAGE request (checksum, version and group are in it, see
ha/raft/messages.py), mostly oneway. A link drops messages that it cannot send now: Raft sends them again.
From time to time a link sends a message as a call, to notice a network path that drops everything: the
operating system would retry it for minutes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping

from aerobee.clock import Clock
from aerobee.errors import TransportError
from aerobee.ha.raft.messages import Message, encode_message
from aerobee.log_throttle import LogThrottle
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.connection import Connection
from aerobee.remoting.proven_client import prove

QUEUE_MESSAGES_MAX = 1_024
QUEUE_BYTES_MAX = 16 << 20
CONNECT_S = 1.0
RETRY_S = 0.1  # pause between attempts to connect: a host without a listener refuses immediately
PROBE_INTERVAL_S = 0.5
PROBE_TIMEOUT_S = 1.5
log = logging.getLogger("aerobee.controller")


class PeerLinks:
    """Links to the other controllers, opened at the first message."""

    def __init__(
        self, *, group: str, addresses: Mapping[str, str], client: RemotingClient, clock: Clock
    ) -> None:
        self._group = group
        self._unknown = LogThrottle(log, clock.monotonic)
        self._links = {name: _Link(name, address, client, clock) for name, address in addresses.items()}

    def start(self) -> None:
        for link in self._links.values():
            link.start()

    async def stop(self) -> None:
        for link in self._links.values():
            await link.stop()

    def send(self, message: Message) -> None:
        """Queue a message; the link drops it when its target is unreachable or too slow."""
        link = self._links.get(message.target)
        if link is None:
            self._unknown.warn(
                message.target,
                "no address of the controller %s: add it to controllerDLegerPeers",
                message.target,
            )
            return
        link.put(encode_message(message, self._group))


class _Link:
    def __init__(self, name: str, address: str, client: RemotingClient, clock: Clock) -> None:
        self._name = name
        self._address = address
        self._client = client
        self._clock = clock
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._probe: asyncio.Task[None] | None = None
        self._probe_due_s = 0.0
        self._is_reachable: bool | None = None
        self._refused = LogThrottle(log, clock.monotonic)

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"controller-link-{self._name}")

    async def stop(self) -> None:
        tasks = [task for task in (self._task, self._probe) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def put(self, data: bytes) -> None:
        if len(self._queue) < QUEUE_MESSAGES_MAX and self._queued_bytes + len(data) <= QUEUE_BYTES_MAX:
            self._queue.append(data)
            self._queued_bytes += len(data)
            self._wake.set()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            try:
                connection = await self._client.connect(self._address, CONNECT_S)
                await prove(self._client, self._address, PROBE_TIMEOUT_S)
                self._heard(True)
                await self._send_queued(connection)
            except TransportError as error:
                self._heard(False, error)
                # Waiting messages are outdated when the connection is restored.
                self._queue.clear()
                self._queued_bytes = 0
                await self._clock.sleep(RETRY_S)
            if not self._queue:
                self._wake.clear()

    async def _send_queued(self, connection: Connection) -> None:
        while self._queue and connection.is_open:
            data = self._queue.popleft()
            self._queued_bytes -= len(data)
            command = RemotingCommand(RequestCode.AEROBEE_RAFT_MESSAGE, body=data)
            now = self._clock.monotonic()
            if now >= self._probe_due_s and (self._probe is None or self._probe.done()):
                self._probe_due_s = now + PROBE_INTERVAL_S
                self._probe = asyncio.create_task(
                    self._ask(connection, command), name="controller-link-probe"
                )
            else:
                connection.invoke_oneway(command)
            if connection.congested:
                await connection.wait_writable(PROBE_TIMEOUT_S, "a Raft message")

    async def _ask(self, connection: Connection, command: RemotingCommand) -> None:
        try:
            answer = await connection.invoke(command, timeout_s=PROBE_TIMEOUT_S)
            if answer.code != ResponseCode.SUCCESS:
                self._refused.warn("", "the controller %s refuses this one: %s", self._name, answer.remark)
        except TransportError as error:
            self._heard(False, error)
            connection.close("the other controller gives no answer")

    def _heard(self, is_reachable: bool, error: Exception | None = None) -> None:
        if is_reachable is self._is_reachable:
            return
        self._is_reachable = is_reachable
        if is_reachable:
            log.info("connected to the controller %s at %s", self._name, self._address)
        else:
            log.warning("the controller %s at %s is out of reach: %s", self._name, self._address, error)
