"""Requests that need an administrator, independent of users and permissions: an open gate uses this list, too. Core."""

from __future__ import annotations

from aerobee.remoting.codes import RequestCode as R
from aerobee.remoting.command import RemotingCommand

# Requests that change stored data or the operation of a broker for all clients: for administrators only.
ADMIN = frozenset(
    {
        R.UPDATE_AND_CREATE_TOPIC, R.UPDATE_AND_CREATE_TOPIC_LIST, R.UPDATE_AND_CREATE_STATIC_TOPIC,
        R.DELETE_TOPIC_IN_BROKER, R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        R.DELETE_SUBSCRIPTIONGROUP, R.INVOKE_BROKER_TO_RESET_OFFSET, R.CLONE_GROUP_OFFSET,
        R.UPDATE_AND_GET_GROUP_FORBIDDEN, R.RESUME_CHECK_HALF_MESSAGE, R.SET_MESSAGE_REQUEST_MODE,
        R.UPDATE_BROKER_CONFIG, R.GET_BROKER_CONFIG, R.CLEAN_EXPIRED_CONSUMEQUEUE, R.CLEAN_UNUSED_TOPIC,
        R.DELETE_EXPIRED_COMMITLOG, R.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, R.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
        R.SET_COMMITLOG_READ_MODE, R.SWITCH_TIMER_ENGINE, R.RESET_MASTER_FLUSH_OFFSET,
        R.AEROBEE_REMOVE_OFFSETS, R.AEROBEE_RESOLVE_TRANSACTION, R.AEROBEE_RESCHEDULE_TIMER, R.AEROBEE_CREATE_SCHEDULE, R.AEROBEE_CHANGE_SCHEDULE,
        R.PUT_KV_CONFIG, R.DELETE_KV_CONFIG, R.WIPE_WRITE_PERM_OF_BROKER, R.ADD_WRITE_PERM_OF_BROKER,
        R.DELETE_TOPIC_IN_NAMESRV, R.UPDATE_NAMESRV_CONFIG, R.GET_NAMESRV_CONFIG,
        R.AUTH_CREATE_USER, R.AUTH_UPDATE_USER, R.AUTH_DELETE_USER, R.AUTH_GET_USER, R.AUTH_LIST_USER,
        R.AUTH_CREATE_ACL, R.AUTH_UPDATE_ACL, R.AUTH_DELETE_ACL, R.AUTH_GET_ACL, R.AUTH_LIST_ACL,
    }
)  # fmt: skip
# The administrators' requests at a controller. It has no users: whoever holds its key may send each of them.
CONTROLLER_ADMIN = frozenset(
    {R.UPDATE_CONTROLLER_CONFIG, R.GET_CONTROLLER_CONFIG, R.CLEAN_BROKER_DATA, R.AEROBEE_CHANGE_QUORUM}
)
# With some fields a request of administrators, without them one that brokers send (see is_admin).
SOMETIMES_ADMIN = frozenset({R.CONTROLLER_ELECT_MASTER})
ASKED_AT_AN_OPEN_GATE = ADMIN | CONTROLLER_ADMIN | SOMETIMES_ADMIN


def is_admin(request: RemotingCommand) -> bool:
    """Whether this request is an administrator's. Raises MalformedFrame.

    Brokers request an election without naming a master; naming one, or waiting for other groups, is for administrators only.
    """
    if request.code in SOMETIMES_ADMIN:
        return request.boolean("designateElect", False) or request.integer("apartMillis", 0) > 0
    return request.code in ADMIN or request.code in CONTROLLER_ADMIN
