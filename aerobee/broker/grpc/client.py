"""A client that speaks gRPC, as the broker's registries know a peer.

A client is identified by its client id and user, not by a connection, because it may have several. What the broker asks
a peer by remoting goes out on its Telemetry stream: a transaction's check, a stack dump, a message to verify. Other
notices have no counterpart in gRPC.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

from aerobee.broker.grpc.message_form import delivered_message
from aerobee.broker.grpc.rpc import LANGUAGE, ResponseStream, RpcContext
from aerobee.caller import GRPC
from aerobee.errors import ConnectionLost, MalformedRecord, RequestTimeout
from aerobee.grpc.proto import messages as pb
from aerobee.message import decode_record
from aerobee.remoting import fastjson
from aerobee.remoting.body.heartbeat import HeartbeatData
from aerobee.remoting.codes import RequestCode, ResponseCode, request_name
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Peer

ASKED_MAX = 64  # commands of one client that wait for its answer
NO_COUNTERPART = "a client of gRPC has no answer to this request"


class GrpcClient(Peer):
    """One client. `heartbeat` is None until it has sent settings; `seen` in monotonic seconds."""

    def __init__(self, client_id: str, principal: str, context: RpcContext, now: float) -> None:
        self.client_id = client_id
        self.principal = principal
        self.protocol = GRPC
        self.heartbeat: HeartbeatData | None = None  # what its settings stand for
        self.seen = now
        self._context = context
        self._stream: ResponseStream | None = None
        self._asked: dict[str, asyncio.Future[pb.TelemetryCommand]] = {}
        self._nonces = itertools.count(1)
        self._close_callbacks: list[Callable[[Peer], None]] = []
        self._is_closed = False

    # --- of gRPC

    def touch(self, context: RpcContext, now: float) -> None:
        """Record an RPC of the client; `address` is that of its newest RPC."""
        self._context = context
        self.seen = now

    def attach(self, stream: ResponseStream) -> None:
        """Commands go to this Telemetry stream from now on."""
        self._stream = stream

    def detach(self, stream: ResponseStream) -> None:
        """A Telemetry stream has ended."""
        if self._stream is stream:
            self._stream = None
            for future in list(self._asked.values()):
                if not future.done():
                    future.set_exception(self._lost("the command"))

    @property
    def is_closed(self) -> bool:
        """Whether it has left every group."""
        return self._is_closed

    @property
    def language(self) -> str:
        """Its language, as its newest RPC says it; empty for a client that does not."""
        return self._context.metadata.get(LANGUAGE, "")

    @property
    def has_stream(self) -> bool:
        """Whether a Telemetry stream is open."""
        return self._stream is not None and not self._stream.is_over

    def answered(self, nonce: str, command: pb.TelemetryCommand) -> None:
        """The client answers a command. An answer without a pending question is ignored."""
        future = self._asked.get(nonce)
        if future is not None and not future.done():
            future.set_result(command)

    # --- Peer

    __hash__ = object.__hash__

    @property
    def address(self) -> str:
        """As Caller."""
        return self._context.peer.address

    @property
    def host_port(self) -> tuple[str, int]:
        """As Caller."""
        return self._context.peer.host_port

    @property
    def listener(self) -> str:
        """As Caller."""
        return self._context.peer.listener

    @property
    def is_open(self) -> bool:
        """Whether a command can reach the client."""
        return not self._is_closed and self.has_stream

    @property
    def congested(self) -> bool:
        """As Caller."""
        return self._context.peer.congested

    def send(self, command: RemotingCommand) -> None:
        """Do nothing: replies to a gRPC client go to its calls."""

    def write(self, data: bytes) -> None:
        """Do nothing: replies to a gRPC client go to its calls."""

    def write_now(self, data: bytes) -> None:
        """Do nothing: replies to a gRPC client go to its calls."""

    def invoke_oneway(self, command: RemotingCommand) -> None:
        """Send a transaction check, or that a lite topic went to another client; drop other notices."""
        if not self.is_open:
            return
        if command.code == RequestCode.NOTIFY_UNSUBSCRIBE_LITE:
            notice = pb.NotifyUnsubscribeLiteCommand(lite_topic=command.field("liteTopic") or "")
            self._push(pb.TelemetryCommand(status=_ok(), notify_unsubscribe_lite_command=notice))
        elif command.code == RequestCode.CHECK_TRANSACTION_STATE:
            self._check_transaction(command)

    def _check_transaction(self, command: RemotingCommand) -> None:
        try:
            record = decode_record(command.body, check_crc=False)
        except MalformedRecord:
            return
        message = delivered_message(record, topic=record.topic)
        transaction_id = command.field("transactionId") or ""
        recover = pb.RecoverOrphanedTransactionCommand(message=message, transaction_id=transaction_id)
        self._push(pb.TelemetryCommand(status=_ok(), recover_orphaned_transaction_command=recover))

    async def invoke(self, command: RemotingCommand, *, timeout_s: float) -> RemotingCommand:
        """Let the client dump its stacks (307) or consume one message (309). Raises ConnectionLost, RequestTimeout."""
        if command.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            nonce = self._nonce()
            asked = pb.PrintThreadStackTraceCommand(nonce=nonce)
            answer = await self._ask(
                nonce,
                pb.TelemetryCommand(status=_ok(), print_thread_stack_trace_command=asked),
                command,
                timeout_s,
            )
            return _running_info(command, answer)
        if command.code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
            return await self._verify(command, timeout_s)
        return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=NO_COUNTERPART)

    def on_close(self, callback: Callable[[Any], None]) -> None:
        """As Caller."""
        if self._is_closed:
            callback(self)
        else:
            self._close_callbacks.append(callback)

    def close(self, reason: str = "") -> None:
        """Leave every group, and end the Telemetry stream."""
        if self._is_closed:
            return
        self._is_closed = True
        stream, self._stream = self._stream, None
        callbacks, self._close_callbacks = self._close_callbacks, []
        for callback in callbacks:
            callback(self)
        if stream is not None:
            stream.end()

    def failed(self, error: BaseException | None = None) -> None:
        """As Caller."""
        self._context.peer.failed(error)

    # --- inside

    def _push(self, command: pb.TelemetryCommand) -> None:
        if self._stream is not None:
            self._stream.push(command)

    def _nonce(self) -> str:
        return f"{next(self._nonces)}"

    def _lost(self, what: str) -> ConnectionLost:
        text = f"{what} cannot reach client {self.client_id}: its Telemetry stream has ended"
        return ConnectionLost(text, address=self.address, request=what, elapsed_s=0.0)

    async def _verify(self, command: RemotingCommand, timeout_s: float) -> RemotingCommand:
        record = decode_record(command.body, check_crc=False)
        nonce = self._nonce()
        message = delivered_message(record, topic=record.topic, receipt_handle=nonce)
        asked = pb.VerifyMessageCommand(nonce=nonce, message=message)
        command_out = pb.TelemetryCommand(status=_ok(), verify_message_command=asked)
        answer = await self._ask(nonce, command_out, command, timeout_s)
        is_consumed = answer.status.code == pb.OK
        result = {
            "autoCommit": True,
            "consumeResult": "CR_SUCCESS" if is_consumed else "CR_THROW_EXCEPTION",
            "order": False,
            "remark": answer.status.message,
            "spentTimeMills": 0,
        }
        return command.reply(body=fastjson.dumps(result))

    async def _ask(
        self, nonce: str, command: pb.TelemetryCommand, request: RemotingCommand, timeout_s: float
    ) -> pb.TelemetryCommand:
        name = request_name(request.code)
        if not self.is_open:
            raise self._lost(name)
        if len(self._asked) >= ASKED_MAX:
            raise RequestTimeout(
                f"{len(self._asked)} commands wait for client {self.client_id}, no more are sent",
                address=self.address, request=name, elapsed_s=0.0,
            )  # fmt: skip
        future: asyncio.Future[pb.TelemetryCommand] = asyncio.get_running_loop().create_future()
        self._asked[nonce] = future
        self._push(command)
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError as error:
            text = f"client {self.client_id} did not answer {name} within {timeout_s:g} s"
            raise RequestTimeout(text, address=self.address, request=name, elapsed_s=timeout_s) from error
        finally:
            del self._asked[nonce]


def _ok() -> pb.Status:
    return pb.Status(code=pb.OK, message="OK")


def _running_info(request: RemotingCommand, answer: pb.TelemetryCommand) -> RemotingCommand:
    info = {"properties": {}, "jstack": answer.thread_stack_trace.thread_stack_trace}
    return request.reply(body=fastjson.dumps(info))
