"""Refusals of RPCs: maps the broker's refusals to the codes of apache.rocketmq.v2. Core.

Source: ResponseBuilder and GrpcProxyException (RocketMQ 5.5.0).
"""

from __future__ import annotations

from collections.abc import Mapping

from aerobee.broker.admission.ack import Safety
from aerobee.broker.state.refusal import Reason, Refused
from aerobee.errors import AerobeeError, RemoteError, StoreError
from aerobee.grpc.proto import messages as pb
from aerobee.remoting.codes import ResponseCode

OK_TEXT = "OK"
_CODES: Mapping[int, pb.Code] = {
    ResponseCode.SYSTEM_BUSY: pb.TOO_MANY_REQUESTS,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: pb.NOT_IMPLEMENTED,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: pb.CONSUMER_GROUP_NOT_FOUND,
    ResponseCode.TOPIC_NOT_EXIST: pb.TOPIC_NOT_FOUND,
    ResponseCode.NO_PERMISSION: pb.FORBIDDEN,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: pb.ILLEGAL_FILTER_EXPRESSION,
    ResponseCode.LMQ_QUOTA_EXCEEDED: pb.LITE_TOPIC_QUOTA_EXCEEDED,
    ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED: pb.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
    ResponseCode.FLUSH_DISK_TIMEOUT: pb.MASTER_PERSISTENCE_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: pb.SLAVE_PERSISTENCE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: pb.HA_NOT_AVAILABLE,
}
_REASONS: Mapping[Reason, pb.Code] = {
    Reason.FORBIDDEN: pb.FORBIDDEN,
    Reason.NOT_MASTER: pb.INTERNAL_SERVER_ERROR,
    Reason.TOPIC_UNKNOWN: pb.TOPIC_NOT_FOUND,
    Reason.GROUP_UNKNOWN: pb.CONSUMER_GROUP_NOT_FOUND,
    Reason.QUEUE_ILLEGAL: pb.BAD_REQUEST,
    Reason.COUNT_ILLEGAL: pb.BAD_REQUEST,
    Reason.INVISIBLE_TIME_ILLEGAL: pb.ILLEGAL_INVISIBLE_TIME,
    Reason.FILTER_ILLEGAL: pb.ILLEGAL_FILTER_EXPRESSION,
    Reason.FILTERS_OFF: pb.ILLEGAL_FILTER_EXPRESSION,
    Reason.HANDLE_ILLEGAL: pb.INVALID_RECEIPT_HANDLE,
    Reason.OFFSET_IMPOSSIBLE: pb.ILLEGAL_OFFSET,
    Reason.OFFSET_ILLEGAL: pb.ILLEGAL_OFFSET,
    Reason.RECORD_UNKNOWN: pb.INVALID_RECEIPT_HANDLE,
    Reason.NOT_HELD: pb.INVALID_RECEIPT_HANDLE,
    Reason.LITE_DISABLED: pb.NOT_IMPLEMENTED,
    Reason.LITE_GROUP_UNKNOWN: pb.ILLEGAL_CONSUMER_GROUP,
    Reason.LITE_TOPIC_NOT_BOUND: pb.ILLEGAL_TOPIC,
    Reason.LITE_TOPIC_ILLEGAL: pb.ILLEGAL_LITE_TOPIC,
    Reason.LITE_QUOTA: pb.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
}
_SAFETIES: Mapping[Safety, pb.Code] = {
    Safety.SAFE: pb.OK,
    Safety.FLUSH_TIMEOUT: pb.MASTER_PERSISTENCE_TIMEOUT,
    Safety.NO_REPLICAS: pb.HA_NOT_AVAILABLE,
    Safety.REPLICAS_TIMEOUT: pb.SLAVE_PERSISTENCE_TIMEOUT,
    Safety.SYNC_FAILED: pb.INTERNAL_SERVER_ERROR,
}


class RpcRefused(Exception):
    """An RPC, or a part of one, is answered with a code other than OK."""

    def __init__(self, code: pb.Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def status(code: pb.Code = pb.OK, message: str = OK_TEXT) -> pb.Status:
    """The status of a response."""
    return pb.Status(code=code, message=message)


def code_of(remoting_code: int) -> pb.Code:
    """The code that answers what remoting answers with `remoting_code`."""
    return _CODES.get(remoting_code, pb.INTERNAL_SERVER_ERROR)


def safety_status(safety: Safety, text: str) -> pb.Status:
    """The status for a stored message, by its durability."""
    return status() if safety is Safety.SAFE else status(_SAFETIES[safety], text)


def status_of(error: Exception) -> pb.Status:
    """The status for a refusal, or for an internal error."""
    if isinstance(error, RpcRefused):
        return status(error.code, error.message)
    if isinstance(error, Refused):
        return status(_REASONS[error.reason], error.text)
    if isinstance(error, RemoteError):
        return status(code_of(error.code), error.remark)
    if isinstance(error, StoreError):
        return status(pb.INTERNAL_SERVER_ERROR, str(error))
    if isinstance(error, AerobeeError):
        return status(pb.BAD_REQUEST, str(error))
    return status(pb.INTERNAL_SERVER_ERROR, "internal error, see the broker's log")
