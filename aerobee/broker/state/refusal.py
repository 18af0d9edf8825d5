"""What the broker says when it refuses, where several request families say the same."""

from __future__ import annotations

from aerobee.errors import RecordInvalid, RemoteError, StoreError, StoreFull, StoreNotWritable
from aerobee.remoting.codes import ResponseCode

FAQ = "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."


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
