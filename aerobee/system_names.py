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

REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"
TOOLS_GROUP = "TOOLS_CONSUMER"  # every broker of either product has it
