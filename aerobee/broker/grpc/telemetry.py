"""Telemetry: settings both ways, and commands to the client with its answers.

Each settings frame gets one reply, in order: the client's settings merged with the broker's values, after the client is registered.
Source: ClientActivity (RocketMQ 5.5.0). Differences: a language that remoting does not know ends nothing, and a group that is not there
is made as for a client of remoting, or its client gets the default settings.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from aerobee.broker.grpc.access import RpcAccess
from aerobee.broker.grpc.client import GrpcClient
from aerobee.broker.grpc.client_heartbeat import LITE_TYPES, heartbeat_of
from aerobee.broker.grpc.client_settings import merged_settings
from aerobee.broker.grpc.client_table import ClientTable
from aerobee.broker.grpc.refusal import RpcRefused, status, status_of
from aerobee.broker.grpc.requests import BrokerRequests
from aerobee.broker.grpc.rpc import ResponseStream, RpcContext
from aerobee.broker.lite.lite_group import lite_group
from aerobee.clock import Clock
from aerobee.errors import AerobeeError
from aerobee.grpc.proto import messages as pb
from aerobee.grpc.status import CallError, GrpcStatus
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand

log = logging.getLogger(__name__)

SETTINGS_WAITING_MAX = 16  # settings frames of one stream that are not answered yet
SETTINGS_BYTES_MAX = 256 * 1024  # 1,000 topics with filters; some 30 ms to apply
FAILED = "process client telemetryCommand failed. "


class Groups(Protocol):
    """The settings of groups: a broker's GroupTable, or what a proxy has read of them."""

    def get(self, name: str) -> SubscriptionGroupConfig | None: ...


class Telemetry:
    """Opens the Telemetry streams of clients."""

    def __init__(
        self,
        *,
        clients: ClientTable,
        requests: BrokerRequests,
        access: RpcAccess,
        groups: Groups,
        body_bytes_max: Callable[[], int],
        clock: Clock,
    ) -> None:
        self.clients = clients
        self._requests = requests
        self._access = access
        self._groups = groups
        self._body_bytes_max = body_bytes_max
        self._clock = clock

    def open(self, context: RpcContext, stream: ResponseStream) -> TelemetryStream:
        """A client opens its stream: commands go there from now on. Raises RpcRefused."""
        self._access.identify(context.peer, context.metadata)
        client = self.clients.enter(context)
        client.attach(stream)
        return TelemetryStream(self, context, stream, client)

    async def apply(self, context: RpcContext, client: GrpcClient, settings: pb.Settings) -> pb.Settings:
        """Register the client with these settings; return the settings to answer with. Raises RpcRefused,
        AerobeeError.
        """
        heartbeat = heartbeat_of(client.client_id, settings, self._clock.now_ms())
        for producer in heartbeat.producer_data_set:
            asked = RemotingCommand(RequestCode.SEND_MESSAGE_V2, {"b": producer.group_name})
            self._access.check(context.peer, context.metadata, asked)
        await self._requests.ask(context, RequestCode.HEART_BEAT, {}, heartbeat.encode(), peer=client)
        group = None
        if heartbeat.consumer_data_set:
            name = heartbeat.consumer_data_set[0].group_name
            group = self._groups.get(name) or SubscriptionGroupConfig(name)
            _check_lite(settings, group)
        client.heartbeat = heartbeat
        return merged_settings(settings, body_bytes_max=self._body_bytes_max(), group=group)


def _check_lite(settings: pb.Settings, group: SubscriptionGroupConfig) -> None:
    """A lite group has lite consumers and no others. Raises RpcRefused."""
    is_lite = settings.client_type in LITE_TYPES
    if is_lite is (lite_group(group) is not None):
        return
    text = "regular group cannot use LITE mode" if is_lite else "lite group must use LITE mode"
    raise RpcRefused(pb.BAD_REQUEST, f"{text}: {group.group_name}")


class TelemetryStream:
    """One open stream; a RequestReceiver."""

    def __init__(
        self, telemetry: Telemetry, context: RpcContext, stream: ResponseStream, client: GrpcClient
    ) -> None:
        self._telemetry = telemetry
        self._context = context
        self._stream = stream
        self._client = client
        self._waiting: list[pb.Settings] = []
        self._task: asyncio.Task[None] | None = None
        self._is_half_closed = False

    def receive(self, request: pb.TelemetryCommand) -> None:
        """As RequestReceiver. Raises CallError for settings that say nothing."""
        kind = request.WhichOneof("command")
        if kind == "settings":
            self._settings(request.settings)
        elif kind == "thread_stack_trace":
            self._client.answered(request.thread_stack_trace.nonce, request)
        elif kind == "verify_message_result":
            self._client.answered(request.verify_message_result.nonce, request)

    def half_closed(self) -> None:
        """As RequestReceiver."""
        self._is_half_closed = True
        if self._task is None:
            self._stream.end()

    def ended(self) -> None:
        """As RequestReceiver."""
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        self._client.detach(self._stream)

    def _settings(self, settings: pb.Settings) -> None:
        if settings.WhichOneof("pub_sub") is None:
            text = "there is no publishing or subscription data in settings"
            raise CallError(GrpcStatus.INVALID_ARGUMENT, text)
        if settings.ByteSize() > SETTINGS_BYTES_MAX:
            text = f"settings have {settings.ByteSize()} bytes, at most {SETTINGS_BYTES_MAX} are allowed"
            raise CallError(GrpcStatus.INVALID_ARGUMENT, text)
        if len(self._waiting) >= SETTINGS_WAITING_MAX:
            text = f"{SETTINGS_WAITING_MAX} settings wait for their answer, no more are taken"
            raise CallError(GrpcStatus.RESOURCE_EXHAUSTED, text)
        self._waiting.append(settings)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._apply_all(), name="grpc-settings")

    async def _apply_all(self) -> None:
        try:
            while self._waiting and not self._stream.is_over:
                settings = self._waiting[0]
                merged = await self._telemetry.apply(self._context, self._client, settings)
                del self._waiting[0]
                self._stream.push(pb.TelemetryCommand(status=status(), settings=merged))
                await asyncio.sleep(0)  # other connections have their turn between the settings of this one
            if self._is_half_closed:
                self._stream.end()
        except (RpcRefused, AerobeeError) as error:
            self._refuse(error)
        except Exception as error:
            log.exception(
                "the settings of client %s at %s failed", self._client.client_id, self._client.address
            )
            self._refuse(error)
        finally:
            self._task = None

    def _refuse(self, error: Exception) -> None:
        found = status_of(error)
        if found.code in (pb.UNAUTHORIZED, pb.TOO_MANY_REQUESTS):
            self._stream.push(pb.TelemetryCommand(status=found))
            self._stream.end()
        else:
            internal = found.code == pb.INTERNAL_SERVER_ERROR
            grpc_status = GrpcStatus.INTERNAL if internal else GrpcStatus.INVALID_ARGUMENT
            self._stream.fail(grpc_status, FAILED + found.message)
