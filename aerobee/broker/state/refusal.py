"""Shared texts of refusals.

A service raises `Refused` with a reason; each protocol's encoder has its own code for a reason (`remote_refusal` is remoting's).
"""

from __future__ import annotations

from enum import Enum, auto

from aerobee.errors import AerobeeError, RecordInvalid, RemoteError, StoreError, StoreFull, StoreNotWritable
from aerobee.remoting.codes import ResponseCode
from aerobee.remoting.protocol import FAQ


class Reason(Enum):
    """Why a service refuses a request."""

    FORBIDDEN = auto()  # by a permission bit, or a group that must not consume
    NOT_MASTER = auto()
    TOPIC_UNKNOWN = auto()
    GROUP_UNKNOWN = auto()
    QUEUE_ILLEGAL = auto()
    COUNT_ILLEGAL = auto()
    INVISIBLE_TIME_ILLEGAL = auto()
    FILTER_ILLEGAL = auto()
    FILTERS_OFF = auto()  # SQL92 expressions are disabled
    HANDLE_ILLEGAL = auto()  # no pop can have given it
    OFFSET_IMPOSSIBLE = auto()  # no queue of the topic can have it
    OFFSET_ILLEGAL = auto()  # the queue does not have it, or the group is not the caller's
    RECORD_UNKNOWN = auto()  # nothing that the caller may read lies there
    NOT_HELD = auto()  # the message is not handed out with this handle, or not any more
    LITE_DISABLED = auto()  # this broker has no LMQs
    LITE_GROUP_UNKNOWN = auto()
    LITE_TOPIC_NOT_BOUND = auto()  # the group consumes lite topics of another topic, or none, or all
    LITE_TOPIC_ILLEGAL = auto()  # no lite topic can have the name
    LITE_QUOTA = auto()  # of subscriptions


_CODES = {
    Reason.FORBIDDEN: ResponseCode.NO_PERMISSION,
    Reason.NOT_MASTER: ResponseCode.SYSTEM_ERROR,
    Reason.TOPIC_UNKNOWN: ResponseCode.TOPIC_NOT_EXIST,
    Reason.GROUP_UNKNOWN: ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    Reason.QUEUE_ILLEGAL: ResponseCode.INVALID_PARAMETER,
    Reason.COUNT_ILLEGAL: ResponseCode.SYSTEM_ERROR,
    Reason.INVISIBLE_TIME_ILLEGAL: ResponseCode.INVALID_PARAMETER,
    Reason.FILTER_ILLEGAL: ResponseCode.SUBSCRIPTION_PARSE_FAILED,
    Reason.FILTERS_OFF: ResponseCode.SYSTEM_ERROR,
    Reason.HANDLE_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    Reason.OFFSET_IMPOSSIBLE: ResponseCode.SYSTEM_ERROR,
    Reason.OFFSET_ILLEGAL: ResponseCode.INVALID_PARAMETER,
    Reason.RECORD_UNKNOWN: ResponseCode.SYSTEM_ERROR,
    Reason.NOT_HELD: ResponseCode.NO_MESSAGE,
    Reason.LITE_DISABLED: ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
    Reason.LITE_GROUP_UNKNOWN: ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    Reason.LITE_TOPIC_NOT_BOUND: ResponseCode.INVALID_PARAMETER,
    Reason.LITE_TOPIC_ILLEGAL: ResponseCode.INVALID_PARAMETER,
    Reason.LITE_QUOTA: ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
}


class Refused(AerobeeError):
    """A service refused a request. `text` states the request and the permitted values."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason
        self.text = text


def remote_refusal(error: AerobeeError) -> RemoteError:
    """How remoting answers what a service raised."""
    if isinstance(error, RemoteError):
        return error
    if isinstance(error, Refused):
        return RemoteError(_CODES[error.reason], error.text)
    if isinstance(error, StoreError):
        return store_refusal(error)
    return RemoteError(ResponseCode.SYSTEM_ERROR, str(error))


def store_refusal(error: StoreError) -> RemoteError:
    """The answer to a message that the store did not take."""
    if isinstance(error, RecordInvalid):
        return RemoteError(ResponseCode.MESSAGE_ILLEGAL, str(error))
    if isinstance(error, StoreFull | StoreNotWritable):
        return RemoteError(ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now. {error}")
    return RemoteError(ResponseCode.SYSTEM_ERROR, str(error))


def group_unknown(group: str) -> RemoteError:
    """The answer to a send to the retry topic of a group that is not there."""
    return RemoteError(
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        f"subscription group not exist, {group}; create it, or set autoCreateSubscriptionGroup\n{FAQ}",
    )
