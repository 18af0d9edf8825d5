"""Ids, flags, bounds and names that clients, brokers, NameServers and controllers share. Core.

Constants used by one file stay there; a test refuses a second definition of the same constant.
"""

from __future__ import annotations

MASTER_ID = 0  # broker id of a master (MixAll.MASTER_ID)
BROKER_ID_MAX = (1 << 31) - 1
OFFSET_MAX = (1 << 63) - 1  # of a queue or of the log
ANY_QUEUE = -1  # queue id of a pop: the broker chooses
QUEUES_MAX = 99_999  # maximum per topic at one broker, and of logical queues per topic: a client creates an object for each

# Bits of sysFlag of a pull (PullSysFlag).
PULL_COMMIT_OFFSET = 1
PULL_SUSPEND = 2
PULL_SUBSCRIPTION = 4
PULL_LITE = 16

HOLD_MS_MAX = 300_000  # longest a broker keeps a pull or a pop pending
PULL_COUNT_MAX = 1_024  # messages of one reply whatever the client requests; the store bounds them further
POP_COUNT_MAX = 32  # messages of one pop
INVISIBLE_MS_MAX = 259_200_000  # 3 days: timerMaxDelaySec

BROADCASTING = "BROADCASTING"  # MessageModel: offsets lie with the consumers, the broker does not have them
TYPE_ATTRIBUTE = "message.type"  # of a topic: which kind of message it takes
MESSAGE_TYPES = (
    "NORMAL",
    "FIFO",
    "DELAY",
    "TRANSACTION",
    "PRIORITY",
    "MIXED",
    "LITE",
    "UNSPECIFIED",
)  # its values
# Attributes of lite topics: of their topic, and of the groups that consume them.
LITE_EXPIRATION = (
    "lite.topic.expiration"  # minutes without a message after which a lite topic is removed; -1: never
)
LITE_BIND_TOPIC = "lite.bind.topic"  # makes a lite group, of this topic
LITE_MODEL = "lite.sub.model"
LITE_SHARED, LITE_EXCLUSIVE = "Shared", "Exclusive"  # its values
LITE_RESET_ON_EXCLUSION = "lite.sub.reset.offset.exclusive"
LITE_RESET_ON_UNSUBSCRIBE = "lite.sub.reset.offset.unsubscribe"
LITE_QUOTA = "lite.sub.client.quota"  # lite topics of one client
LITE_WILDCARD = "lite.sub.wildcard"  # the group consumes every lite topic
ACK_LEVEL_ATTRIBUTE = "ack.level"  # of a topic (Aerobee): when its sends are acknowledged
ORDER_TOPIC_NAMESPACE = "ORDER_TOPIC_CONFIG"  # of the NameServers' KV configuration
FAQ = (
    "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."  # the end of many refusals
)
LEVEL_FIELD = "aerobeeAck"  # of a reply to a send that named an acknowledgement level: that level
ONLY_NEW_FIELD = "aerobeeOnlyNew"  # of UPDATE_AND_CREATE_TOPIC: "true" leaves a topic that exists as it is
POP_ID_FIELD = "aerobeePopId"  # of a pop that AEROBEE_WITHDRAW_POP of the same connection may end
# likewise: "index:queueOffset,…" of the messages of a large batch before which messages of others were stored
BATCH_OFFSETS_FIELD = "aerobeeQueueOffsets"
EPOCH_FIELD = "aerobeeEpoch"  # likewise: the epoch of the master that answers
LOG_OFFSET_FIELD = "aerobeeOffset"  # likewise: the end of its record in the log
LISTENERS_FIELD = "aerobeeListeners"  # of a registration: name=ip:port,… of the named listeners; RocketMQ's NameServers ignore it
PART_FIELD = "aerobeePart"  # of a registration: topics that are not in this one are in another
