"""Requests of the protocol that no server supports, and the remarks of their replies. No I/O.

The code of the answer is RocketMQ's for what it does not know: REQUEST_CODE_NOT_SUPPORTED (3).
"""

from __future__ import annotations

from collections.abc import Mapping

from aerobee.remoting.codes import RequestCode as R

NO_ROCKSDB = "queues, offsets and settings are kept in files only, not in RocksDB: there is nothing to look at or to convert"
NO_CONTAINER = (
    "brokers do not run in a broker container: each is a separate process, started and stopped separately"
)
NO_COLD_CONTROL = (
    "reads of cold data run off the event loop and delay no other request: there is no flow control for them"
)
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
            R.UPDATE_AND_CREATE_ACL_CONFIG, R.DELETE_ACL_CONFIG, R.GET_BROKER_CLUSTER_ACL_INFO,
            R.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, R.GET_BROKER_CLUSTER_ACL_CONFIG,
        ),
        NO_ACL_REQUESTS,
    ),
    **dict.fromkeys((R.GET_BROKER_EPOCH_CACHE, R.NOTIFY_BROKER_ROLE_CHANGED), NO_CONTROLLER_MODE),
    R.NOTIFY_UNSUBSCRIBE_LITE: "brokers send it to clients: no server takes it",
    R.ACK_LITE_MESSAGE: "a message of a lite topic is acknowledged by ACK_MESSAGE with its liteTopic",
    R.RESET_MASTER_FLUSH_OFFSET: "a slave continues from its own log, truncated to the part it shares with its master: the offset cannot be set manually",
    R.SET_COMMITLOG_READ_MODE: "the operating system chooses its read-ahead from the reads of the log: the mode cannot be set",
    R.SWITCH_TIMER_ENGINE: "there is one engine for timers, the wheel in files: nothing to switch to",
    R.POP_ROLLBACK: "POP deliveries are kept in memory and rebuilt from the log: there are no records to export or to roll back",
}  # fmt: skip


def remark(code: int) -> str:
    """The text of the answer, RocketMQ's first."""
    plain = f" request type {code} not supported"
    why = WHY.get(code)
    return plain if why is None else f"{plain}: {why}"
