"""gRPC clients of the features' topic: one sends messages, one receives with the POP group.

What the group gets from either protocol is checked alike (features.py). A receiver shortens the invisible time of each message to that of
the group's other members, then acknowledges it, gives it back, or forgets it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from aerobee.grpc.proto import messages as pb
from aerobee.host_port import join_address
from aerobee.network import Network
from aerobee.simulation.grpc_calls import CallFailed, GrpcCalls
from aerobee.simulation.names import BROKER_PORT, BROKERS, LOCAL, PORT_STEP
from aerobee.simulation.simulated_loop import SimulatedClock
from aerobee.simulation.task import GRPC, INVISIBLE_S, POP_GROUP, TASKS, Task, TaskTable

RECEIVED_INVISIBLE_S = 10.0  # the least that ReceiveMessage takes
POLL_S, CALL_TIMEOUT_S, CONNECT_TIMEOUT_S = 2.0, 5.0, 1.0
SEND_PAUSE_S_MAX = 0.8
BATCH_SIZE = 8
FORGOTTEN_SHARE, GIVEN_BACK_SHARE = 0.1, 0.2


class GrpcTask:
    """One gRPC client: it calls the broker that answered last, and after a failure the next one."""

    def __init__(self, name: str, network: Network, rng: random.Random) -> None:
        self._name = name
        self._network = network
        self._broker = rng.randrange(BROKERS)
        self._calls: GrpcCalls | None = None

    async def call(self, name: str, request: Any, timeout_s: float = CALL_TIMEOUT_S) -> list[Any]:
        """The messages of the response. Raises CallFailed."""
        response = getattr(pb, f"{name}Response")
        try:
            calls = await self._connected()
            metadata = {"x-mq-client-id": self._name, "x-mq-language": "PYTHON"}
            found = await calls.call(name, request.SerializeToString(), metadata, timeout_s)
        except CallFailed:
            self.turn_away()
            raise
        return [response.FromString(each) for each in found]

    def turn_away(self) -> None:
        """Go to the next broker: this one is no master, or does not answer."""
        self.close()
        self._broker = (self._broker + 1) % BROKERS

    def close(self) -> None:
        """End the connection."""
        calls, self._calls = self._calls, None
        if calls is not None:
            calls.close()

    async def _connected(self) -> GrpcCalls:
        if self._calls is not None and not self._calls.is_closed:
            return self._calls
        port = BROKER_PORT + self._broker * PORT_STEP
        calls = GrpcCalls(join_address(LOCAL, port))
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._network.create_connection(lambda: calls, LOCAL, port)
        except (OSError, TimeoutError) as error:
            calls.close()
            raise CallFailed(f"broker {self._broker} cannot be reached") from error
        self._calls = calls
        return calls


async def send_tasks(
    features: TaskTable,
    client: GrpcTask,
    rng: random.Random,
    pause: Callable[[float], Any],
    is_sending: Callable[[], bool],
) -> None:
    """Send messages, each once, while `is_sending`."""
    try:
        while is_sending():
            await pause(rng.uniform(0.05, SEND_PAUSE_S_MAX))
            task = features.new_task(GRPC)
            message = pb.Message(topic=pb.Resource(name=TASKS), body=task.body)
            system = message.system_properties
            system.message_id = task.body.decode()
            system.message_type, system.body_encoding = pb.NORMAL, pb.IDENTITY
            features.under_way += 1
            try:
                (answer,) = await client.call("SendMessage", pb.SendMessageRequest(messages=[message]))
            except CallFailed:
                continue
            finally:
                features.under_way -= 1
            task.is_stored = answer.status.code == pb.OK
            if not task.is_stored:
                client.turn_away()
    finally:
        client.close()


async def receive_tasks(
    features: TaskTable,
    client: GrpcTask,
    rng: random.Random,
    clock: SimulatedClock,
    is_sending: Callable[[], bool],
) -> None:
    """Receive messages of the group, until cancelled."""
    request = pb.ReceiveMessageRequest(
        group=pb.Resource(name=POP_GROUP),
        message_queue=pb.MessageQueue(topic=pb.Resource(name=TASKS)),
        batch_size=BATCH_SIZE,
    )
    request.invisible_duration.seconds = round(RECEIVED_INVISIBLE_S)
    request.long_polling_timeout.seconds = round(POLL_S)
    try:
        while True:
            try:
                frames = await client.call("ReceiveMessage", request, POLL_S + CALL_TIMEOUT_S)
            except CallFailed:
                await clock.sleep(0.5)
                continue
            if frames[0].status.code not in (pb.OK, pb.MESSAGE_NOT_FOUND):
                client.turn_away()
                await clock.sleep(0.5)
                continue
            now = clock.monotonic()
            for frame in frames[1:-1]:
                task = features.received(frame.message.body, now, GRPC)
                if task is not None:
                    await _handle(client, task, frame.message, rng, clock, is_sending)
    finally:
        client.close()


async def _handle(
    client: GrpcTask,
    task: Task,
    message: Any,
    rng: random.Random,
    clock: SimulatedClock,
    is_sending: Callable[[], bool],
) -> None:
    """Hold a message as long as other members do, then acknowledge it, give it back, or forget it."""
    system = message.system_properties
    fate = rng.random() if is_sending() else 1.0
    handle = await _change(client, system, system.receipt_handle, INVISIBLE_S)
    if handle is None:
        task.held_s = RECEIVED_INVISIBLE_S  # a copy may be invisible that long
        handle = system.receipt_handle
    if fate < FORGOTTEN_SHARE:
        return
    if fate < FORGOTTEN_SHARE + GIVEN_BACK_SHARE:
        await _change(client, system, handle, 0.0)
        return
    entry = pb.AckMessageEntry(message_id=system.message_id, receipt_handle=handle)
    request = pb.AckMessageRequest(
        group=pb.Resource(name=POP_GROUP), topic=pb.Resource(name=TASKS), entries=[entry]
    )
    try:
        (answer,) = await client.call("AckMessage", request)
    except CallFailed:
        task.is_maybe_done = True
        return
    if answer.status.code == pb.OK:
        task.done_at_s = min(task.done_at_s, clock.monotonic())
    else:
        task.is_maybe_done = True


async def _change(client: GrpcTask, system: Any, handle: str, seconds: float) -> str | None:
    """The new handle; None when the invisible time may not have changed."""
    request = pb.ChangeInvisibleDurationRequest(
        group=pb.Resource(name=POP_GROUP),
        topic=pb.Resource(name=TASKS),
        receipt_handle=handle,
        message_id=system.message_id,
    )
    request.invisible_duration.seconds, rest = divmod(round(seconds * 1000), 1000)
    request.invisible_duration.nanos = rest * 1_000_000
    try:
        (answer,) = await client.call("ChangeInvisibleDuration", request)
    except CallFailed:
        return None
    return str(answer.receipt_handle) if answer.status.code == pb.OK else None
