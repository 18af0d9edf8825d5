"""Names of topics and groups that a cluster keeps for itself (TopicValidator and MixAll of RocketMQ), and their prefixes. Core."""

from __future__ import annotations

AUTO_CREATE_TEMPLATE = "TBW102"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
BENCHMARK_TOPIC = "BenchmarkTest"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
TRANS_CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
WHEEL_TIMER_TOPIC = "rmq_sys_wheel_timer"
SYSTEM_PREFIX = "rmq_sys_"
RECURRING_TOPIC = f"{SYSTEM_PREFIX}aerobee_schedules"  # recurring schedules
REVIVE_PREFIX = f"{SYSTEM_PREFIX}REVIVE_LOG_"  # and the cluster's name
CLOUD_TRACE_PREFIX = f"{SYSTEM_PREFIX}TRACE_DATA_"  # clients with the cloud channel write their traces to it
LMQ_PREFIX = "%LMQ%"  # queue 0 of such a topic is an LMQ
# Topics in which a broker keeps its own state: a send is answered with NO_PERMISSION.
NOT_SENDABLE = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
    }
)

SYSTEM_GROUP_PREFIX = (
    "CID_RMQ_SYS_"  # MixAll.CID_RMQ_SYS_PREFIX: groups whose offsets are the broker's own state
)
REVIVE_GROUP = f"{SYSTEM_GROUP_PREFIX}REVIVE_GROUP"
TRANSACTION_GROUP = f"{SYSTEM_GROUP_PREFIX}TRANS"  # its offsets say how far all transactions are decided
TOOLS_GROUP = "TOOLS_CONSUMER"  # every broker of either product has it: reading without a group creates none
# Groups that each broker creates at its start.
SYSTEM_GROUPS = (
    TOOLS_GROUP,
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    TRANSACTION_GROUP,
)
# Further groups of RocketMQ's own tools, of this and of earlier versions.
_TOOL_GROUPS = frozenset({"__MONITOR_CONSUMER", "SCHEDULE_CONSUMER"})


def is_system_group(group: str) -> bool:
    """True for groups that each broker has or keeps its own state in; no client consumes with them, and they are never deleted."""
    return group in SYSTEM_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)


def is_hidden_group(group: str) -> bool:
    """True for groups that lists of an operator's groups leave out: system groups, and those of RocketMQ's tools."""
    return is_system_group(group) or group in _TOOL_GROUPS
