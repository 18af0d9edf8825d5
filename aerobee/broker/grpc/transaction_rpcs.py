"""EndTransaction and RecallMessage, served by the handlers of remoting.

The producer group of a transaction is its topic. RocketMQ's proxy remembers where a half message lies for 30 s, and refuses a decision
that comes later; here the broker's table of open transactions finds it for as long as it is open.
"""

from __future__ import annotations

from collections.abc import Callable

from aerobee.broker.grpc.access import RpcAccess
from aerobee.broker.grpc.names import topic_name
from aerobee.broker.grpc.refusal import RpcRefused, status
from aerobee.broker.grpc.requests import BrokerRequests
from aerobee.broker.grpc.rpc import RpcContext
from aerobee.broker.state.topic_table import TopicTable
from aerobee.broker.transaction.transaction_table import Outcome, TransactionTable
from aerobee.errors import RemoteError
from aerobee.grpc.proto import messages as pb
from aerobee.message import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand, boolean_text
from aerobee.remoting.protocol import TYPE_ATTRIBUTE
from aerobee.remoting.recall_handle import decode_recall_handle

ID_CHARS_MAX = 255
_DECISIONS = {
    pb.COMMIT: (TRANSACTION_COMMIT, Outcome.COMMITTED),
    pb.ROLLBACK: (TRANSACTION_ROLLBACK, Outcome.ROLLED_BACK),
}


class TransactionRpcs:
    """Serves both RPCs."""

    def __init__(
        self,
        *,
        table: Callable[[], TransactionTable],
        topics: TopicTable,
        requests: BrokerRequests,
        access: RpcAccess,
    ) -> None:
        """`table` gives that of now: a new master reads it again."""
        self._table = table
        self._topics = topics
        self._requests = requests
        self._access = access

    async def end(self, context: RpcContext, request: pb.EndTransactionRequest) -> pb.EndTransactionResponse:
        """Commit or roll back. Raises RpcRefused, RemoteError."""
        topic, transaction_id = topic_name(request.topic), request.transaction_id
        if not transaction_id.strip() or len(transaction_id) > ID_CHARS_MAX:
            raise RpcRefused(pb.INVALID_TRANSACTION_ID, "transaction id cannot be empty")
        asked = RemotingCommand(RequestCode.END_TRANSACTION, {"topic": topic})
        self._access.check(context.peer, context.metadata, asked)
        decision = _DECISIONS.get(request.resolution)
        if decision is None:
            return pb.EndTransactionResponse(status=status())  # not decided: the broker asks again
        flag, outcome = decision
        key = (topic, transaction_id)
        transaction = self._table().by_key.get(key)
        if transaction is None:
            if self._table().outcomes.get(key) is outcome:
                return pb.EndTransactionResponse(status=status())
            raise RpcRefused(pb.INTERNAL_SERVER_ERROR, "cannot found transaction data")
        ext = {
            "topic": topic,
            "producerGroup": topic,
            "tranStateTableOffset": str(transaction.queue_offset),
            "commitLogOffset": str(transaction.physical_offset),
            "commitOrRollback": str(flag),
            "fromTransactionCheck": boolean_text(request.source == pb.SOURCE_SERVER_CHECK),
            "msgId": request.message_id,
            "transactionId": transaction_id,
        }
        await self._requests.ask(context, RequestCode.END_TRANSACTION, ext)
        return pb.EndTransactionResponse(status=status())

    async def recall(self, context: RpcContext, request: pb.RecallMessageRequest) -> pb.RecallMessageResponse:
        """Recall a timer message that is not delivered yet. Raises RpcRefused, RemoteError."""
        name = topic_name(request.topic)
        asked = RemotingCommand(RequestCode.RECALL_MESSAGE, {"topic": name})
        self._access.check(context.peer, context.metadata, asked)
        topic = self._topics.get(name)
        kind = "UNSPECIFIED" if topic is None else topic.attributes.get(TYPE_ATTRIBUTE, "NORMAL")
        if kind not in ("DELAY", "MIXED"):
            text = f"TopicMessageType validate failed, the expected type is {kind}, but actual type is DELAY"
            raise RpcRefused(pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, text)
        try:
            decode_recall_handle(request.recall_handle)
        except ValueError as error:
            raise RpcRefused(pb.INTERNAL_SERVER_ERROR, "recall handle is invalid") from error
        ext = {"topic": name, "recallHandle": request.recall_handle, "producerGroup": name}
        try:
            reply = await self._requests.ask(context, RequestCode.RECALL_MESSAGE, ext)
        except RemoteError as error:
            code = (
                pb.TOO_MANY_REQUESTS if error.code == ResponseCode.SYSTEM_BUSY else pb.INTERNAL_SERVER_ERROR
            )
            raise RpcRefused(code, error.remark) from error
        return pb.RecallMessageResponse(status=status(), message_id=reply.text("msgId", ""))
