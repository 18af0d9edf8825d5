"""Requests of the protocol that nobody here serves, and the sentence that their answer says. Core.

The code of the answer is RocketMQ's for what it does not know: REQUEST_CODE_NOT_SUPPORTED (3).
"""

from __future__ import annotations

from collections.abc import Mapping

from aerobee.remoting.codes import RequestCode as R

NO_ROCKSDB = "queues, offsets and settings are kept in files only, not in RocksDB: there is nothing to look at or to convert"
NO_CONTAINER = (
    "brokers do not run in a container of brokers: each is a process of its own, started and stopped as such"
)
NO_COLD_CONTROL = (
    "reads of cold data run beside the event loop and hold nobody up: there is no flow control for them"
)
NO_LITE = "lite topics are not served"
NO_ACL_REQUESTS = (
    "accounts of ACL 1.0 stand in plain_acl.yml, which is read again when it changes: no request changes them"
)
NO_CONTROLLER_MODE = "this broker is not in controller mode: it has no epochs"
WHY: Mapping[int, str] = {
    **dict.fromkeys((R.CHECK_ROCKSDB_CQ_WRITE_PROGRESS, R.EXPORT_ROCKSDB_CONFIG_TO_JSON), NO_ROCKSDB),
    **dict.fromkeys((R.ADD_BROKER, R.REMOVE_BROKER), NO_CONTAINER),
    **dict.fromkeys(
        (R.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, R.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, R.GET_COLD_DATA_FLOW_CTR_INFO),
        NO_COLD_CONTROL,
    ),
    **dict.fromkeys(
        (
            R.POP_LITE_MESSAGE, R.LITE_SUBSCRIPTION_CTL, R.ACK_LITE_MESSAGE, R.NOTIFY_UNSUBSCRIBE_LITE, R.GET_BROKER_LITE_INFO,
            R.GET_PARENT_TOPIC_INFO, R.GET_LITE_TOPIC_INFO, R.GET_LITE_CLIENT_INFO, R.GET_LITE_GROUP_INFO, R.TRIGGER_LITE_DISPATCH,
        ),
        NO_LITE,
    ),
    **dict.fromkeys(
        (
            R.UPDATE_AND_CREATE_ACL_CONFIG, R.DELETE_ACL_CONFIG, R.GET_BROKER_CLUSTER_ACL_INFO,
            R.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, R.GET_BROKER_CLUSTER_ACL_CONFIG,
        ),
        NO_ACL_REQUESTS,
    ),
    **dict.fromkeys((R.GET_BROKER_EPOCH_CACHE, R.NOTIFY_BROKER_ROLE_CHANGED), NO_CONTROLLER_MODE),
    R.RESET_MASTER_FLUSH_OFFSET: "a slave goes on from its own log, which is cut to what it shares with its master: no offset is set by hand",
    R.SET_COMMITLOG_READ_MODE: "the system reads ahead as it sees the log read: no mode is set by hand",
    R.SWITCH_TIMER_ENGINE: "there is one engine for timers, the wheel in files: nothing to switch to",
    R.POP_ROLLBACK: "what POP has handed out is known in memory and rebuilt from the log: there are no records to export or to roll back",
}  # fmt: skip


def remark(code: int) -> str:
    """The text of the answer, RocketMQ's first."""
    plain = f" request type {code} not supported"
    why = WHY.get(code)
    return plain if why is None else f"{plain}: {why}"
