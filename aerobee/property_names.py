"""The names of message properties that the broker itself reads or writes. RocketMQ's are in MessageConst.

Those that clients and the store know as well are in aerobee/message.py and store/queue/queue_table.py.
"""

from __future__ import annotations

UNIQUE_KEY = "UNIQ_KEY"

# Where a message belongs that lies in a system topic: delay levels, timers, half messages.
REAL_TOPIC = "REAL_TOPIC"
REAL_QUEUE_ID = "REAL_QID"

# Delays. A producer writes one of the first four; the broker adds the others.
DELAY = "DELAY"
TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
TIMER_OUT_MS = "TIMER_OUT_MS"
TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
TIMER_DELETE_KEY = "TIMER_DEL_UNIQKEY"
TIMER_DELETE_OFFSET = "AEROBEE_DEL_OFFSET"  # a cancelling message of ours may name the one record it is about
TIMER_DELAYS = (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)  # in the order in which they are taken
TIMER_REQUESTS = (*TIMER_DELAYS, TIMER_DELETE_KEY)  # any of them makes a timer message

# Transactions.
TRAN_MSG = "TRAN_MSG"
PRODUCER_GROUP = "PGROUP"
TRANSACTION_ID = "__transactionId__"
CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
IMMUNITY = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"

# Request and reply.
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
CORRELATION_ID = "CORRELATION_ID"

POP_CK = "POP_CK"  # of a popped message: what its acknowledgement says

# Sub-topic of a message of a LITE topic; lite_topic.py.
LITE_TOPIC = "__LITE_TOPIC"

# A batch in one record, and LMQs.
INNER_PREFIX = "INNER_"
INNER_NUM = "INNER_NUM"
INNER_BASE = "INNER_BASE"

ACK_LEVEL = "ACK_LEVEL"  # how safe a message is before its sender is answered (ours)

# A send that is stored once however often it comes (ours).
DEDUP_KEY = "DEDUP_KEY"

# A message of a recurring schedule (ours): the schedule's name, and its tick in ms.
SCHEDULE_NAME = "AEROBEE_SCHEDULE"
SCHEDULE_TICK = "AEROBEE_TICK"

# Names of properties that belong to clients and brokers (MessageConst.STRING_HASH_SET of RocketMQ 5.5.0). A user of the gRPC
# API may not set them, and user properties of a received message do not include them.
SYSTEM_PROPERTIES = frozenset(
    {
        "TRACE_ON", "MSG_REGION", "KEYS", "TAGS", "WAIT", "DELAY", "RETRY_TOPIC", "REAL_TOPIC", "REAL_QID",
        "TRAN_MSG", "PGROUP", "MIN_OFFSET", "MAX_OFFSET", "BUYER_ID", "ORIGIN_MESSAGE_ID", "TRANSFER_FLAG",
        "CORRECTION_FLAG", "MQ2_FLAG", "RECONSUME_TIME", "UNIQ_KEY", "MAX_RECONSUME_TIMES",
        "CONSUME_START_TIME", "POP_CK", "POP_CK_OFFSET", "1ST_POP_TIME", "TRAN_PREPARED_QUEUE_OFFSET",
        "DUP_INFO", "EXTEND_UNIQ_INFO", "INSTANCE_ID", "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL",
        "ARRIVE_TIME", "PUSH_REPLY_TIME", "CLUSTER", "MSG_TYPE", "INNER_MULTI_QUEUE_OFFSET", "TIMER_DELAY_MS",
        "TIMER_DELAY_SEC", "TIMER_DELIVER_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES",
        "TIMER_OUT_MS", "TIMER_DEL_UNIQKEY", "TIMER_DELAY_LEVEL", "__BORNHOST", "BORN_TIMESTAMP",
        "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", "__CRC32#", "ORIGIN_GROUP", "_SYS_MSG_PRIORITY_",
        "__LITE_TOPIC",
    }
)  # fmt: skip
