"""The table of all conditions under which the fast path leaves a frame to the handlers, for both backends. A core.

TOPICS and PULLS are evaluated: once for a topic, and once for everything that the authorization of a pull depends on. A
backend, Python or native, receives only what passed. The names in PROPERTIES reach the native backend with its settings.
FRAMES says what a backend checks in each frame, where a look into a table would cost more than the check; the bounds of
these checks are constants, which native/src/constants.rs repeats and tests/unit/test_one_definition.py compares. A test
sends a frame for each row of FRAMES to both backends (tests/unit/broker/fastpath/test_fast_path_exclusions.py). docs/fast-path.md
shows all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import NamedTuple

from aerobee.broker.send.message_type import NORMAL, PLAIN_TYPES
from aerobee.broker.send.send_header import FAST_BATCH_ENTRIES_MAX, FAST_BATCH_HASHES_MAX
from aerobee.broker.send.timer_properties import DIGITS_MAX
from aerobee.broker.state.config import PERM_READ, PERM_WRITE, REFUSE, BrokerConfig
from aerobee.message import (
    COMPRESSED,
    COMPRESSION_MASK,
    DLQ_PREFIX,
    LEGAL_NAME,
    MULTI_TAGS,
    PRIORITY,
    PROPERTIES_BYTES_MAX,
    RETRY_PREFIX,
    SHARDING_KEY,
    TOPIC_BYTES_MAX,
)
from aerobee.property_names import (
    ACK_LEVEL,
    CHECK_TIMES,
    DEDUP_KEY,
    DELAY,
    IMMUNITY,
    INNER_BASE,
    INNER_NUM,
    INNER_PREFIX,
    LITE_TOPIC,
    POP_CK,
    PREPARED_QUEUE_OFFSET,
    PRODUCER_GROUP,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TIMER_DELAYS,
    TIMER_OUT_MS,
    TIMER_REQUESTS,
    TRAN_MSG,
    TRANSACTION_ID,
)
from aerobee.remoting.body.subscription import EXPRESSION_CHARS_MAX
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig
from aerobee.remoting.body.topic_config import SINGLE_TAG, TopicConfig
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.frame import FRAME_BYTES_MAX, HEADER_BYTES_MAX
from aerobee.remoting.protocol import ACK_LEVEL_ATTRIBUTE, TYPE_ATTRIBUTE
from aerobee.store.queue.queue_table import MULTI_DISPATCH, MULTI_OFFSET
from aerobee.system_names import LMQ_PREFIX, NOT_SENDABLE, SYSTEM_PREFIX

# Bounds of the checks in each frame.
ELIGIBLE_SYS_FLAG = COMPRESSED | MULTI_TAGS | COMPRESSION_MASK
NOT_BATCH = frozenset({"false", "0", 0})
NUMBER_CHARS_MAX = 20
LEVEL_MAX = 128
LMQS_MAX = 64  # of a message
# Fields that only Aerobee's consumers send.
SEND_BACK_EXTRAS = ("delayMillis", "lastError", "deliveryTries", "deadLetterReason")
SEND_BACK_SPECIAL = (INNER_PREFIX, "TIMER_", TRAN_MSG, LITE_TOPIC)  # beginnings of properties
SEND_BACK_LEVEL_MAX = 999_999_999
SEND_BACK_PAIRS_MAX = 128  # properties: each is compared with the others
SEND_BACK_RECORD_BYTES_MAX = (
    16_384  # a request has 130 bytes, and a burst a thousand requests: each stores the record again
)
PRIORITY_CHARS_MAX = 9  # surely no more than PRIORITY_MAX
GUARDED_FIELDS_MAX = 64  # of a header whose signature is verified
GUARDED_TEXT_CHARS_MAX = (
    512  # of an access key, a topic, a group: no name is that long, and a grant is known by them
)


class Exclusion(NamedTuple):
    """One condition under which a frame is left to the handlers."""

    condition: str
    reason: str


class TopicContext(NamedTuple):
    """Values, besides its config, that decide whether a topic is eligible for the fast path."""

    config: BrokerConfig
    mapped_topics: Container[str]  # with a static mapping of their queues
    has_extended_queues: bool  # enableConsumeQueueExt


class TopicExclusion(NamedTuple):
    """One kind of topic whose sends are left to the handlers."""

    condition: str
    reason: str
    holds: Callable[[TopicConfig, TopicContext], bool]


class PullContext(NamedTuple):
    """Values, besides the configs of group and topic, that decide whether a pull gets an authorization. `code` is the
    request's.
    """

    code: int
    config: BrokerConfig
    mapped_topics: Container[str]
    serves_group: bool  # the broker's role
    is_readable: bool  # the group may read the topic
    awaits_reset: bool  # a queue of the topic waits for its reset


class PullExclusion(NamedTuple):
    """One kind of pull that is left to the handlers."""

    condition: str
    reason: str
    holds: Callable[[SubscriptionGroupConfig, TopicConfig, PullContext], bool]


def is_own_or_illegal(name: str) -> bool:
    """Whether only a handler, or the broker itself, stores in a topic of this name."""
    return (
        name in NOT_SENDABLE
        or name.startswith(SYSTEM_PREFIX)
        or len(name) > TOPIC_BYTES_MAX
        or not LEGAL_NAME.match(name)
    )


LEVELED_TOPIC = TopicExclusion(
    "an acknowledgement level in its attributes",
    "each send is answered by the topic's level (the frame handler of options takes those of one message)",
    lambda topic, _: ACK_LEVEL_ATTRIBUTE in topic.attributes,
)
# Deliveries of due messages are subject only to the first row, because they also write to retry topics.
TOPICS = (
    TopicExclusion(
        "a name of the broker's own topics, or no legal name",
        "the handler refuses these sends, or the feature that owns the topic stores them",
        lambda topic, _: is_own_or_illegal(topic.topic_name),
    ),
    TopicExclusion(
        "a retry topic or a dead-letter topic",
        "the handler counts reconsumption and moves messages to the dead-letter topic",
        lambda topic, _: topic.topic_name.startswith((RETRY_PREFIX, DLQ_PREFIX)),
    ),
    TopicExclusion(
        "an LMQ",
        "within a burst, messages of other topics write entries into its queue as well",
        lambda topic, _: topic.topic_name.startswith(LMQ_PREFIX),
    ),
    TopicExclusion(
        "a topic with a static mapping",
        "its queue ids are logical; `broker/static_topic/` translates them",
        lambda topic, context: topic.topic_name in context.mapped_topics,
    ),
    TopicExclusion(
        "any topic while enableConsumeQueueExt is set",
        "an append writes an extension unit as well",
        lambda _, context: context.has_extended_queues,
    ),
    TopicExclusion(
        "a filter type other than SINGLE_TAG",
        "the tags code covers several tags",
        lambda topic, _: topic.topic_filter_type != SINGLE_TAG,
    ),
    TopicExclusion(
        "queue.type other than SimpleCQ",
        "an append writes more than a queue entry",
        lambda topic, _: topic.attributes.get("queue.type", "SimpleCQ") != "SimpleCQ",
    ),
    TopicExclusion(
        "cleanup.policy other than DELETE",
        "compaction has its own store",
        lambda topic, _: topic.attributes.get("cleanup.policy", "DELETE") != "DELETE",
    ),
    LEVELED_TOPIC,
    TopicExclusion(
        "a message type other than NORMAL while enableTopicMessageTypeCheck is set",
        "the handler compares each message's type with the topic's",
        lambda topic, context: (
            context.config.enable_topic_message_type_check
            and topic.attributes.get(TYPE_ATTRIBUTE, NORMAL) not in PLAIN_TYPES
        ),
    ),
    TopicExclusion(
        "an ordered topic while brokerPermission denies writing",
        "the handler refuses these sends",
        lambda topic, context: topic.order and not context.config.broker_permission & PERM_WRITE,
    ),
)

PULLS = (
    PullExclusion(
        "a topic with a static mapping",
        "its queue ids are logical; `broker/static_topic/` translates them",
        lambda _, topic, context: topic.topic_name in context.mapped_topics,
    ),
    PullExclusion(
        "a group that may not consume, or not this topic",
        "the handler refuses the pull",
        lambda group, _, context: not (group.consume_enable and context.is_readable),
    ),
    PullExclusion(
        "a topic or a broker without the permission to read",
        "the handler refuses the pull",
        lambda _, topic, context: not (topic.is_readable and context.config.broker_permission & PERM_READ),
    ),
    PullExclusion(
        "a broker whose role serves no groups, unless slaveReadEnable is set",
        "the handler refuses the pull",
        lambda _group, _topic, context: not (context.serves_group or context.config.slave_read_enable),
    ),
    PullExclusion(
        "any pull while subscriptionConflictPolicy is refuse",
        "the handler knows whose subscription was refused",
        lambda _group, _topic, context: context.config.subscription_conflict_policy == REFUSE,
    ),
    PullExclusion(
        "any pull while rejectPullConsumerEnable is set",
        "the handler knows which consumers may pull",
        lambda _group, _topic, context: context.config.reject_pull_consumer_enable,
    ),
    PullExclusion(
        "LITE_PULL_MESSAGE unless litePullMessageEnable is set",
        "the handler refuses the pull",
        lambda _group, _topic, context: (
            context.code == RequestCode.LITE_PULL_MESSAGE and not context.config.lite_pull_message_enable
        ),
    ),
    PullExclusion(
        "a group one of whose queues waits for a reset of its offset",
        "the handler answers the next pull with OFFSET_RESET",
        lambda _group, _topic, context: context.awaits_reset,
    ),
)

# --- properties

# Properties with which a message is more than a record to store, and why; of sends (10, 310).
PROPERTIES: Mapping[str, str] = {
    DELAY: "a delay level (the frame handler of delayed messages takes plain ones)",
    **dict.fromkeys(TIMER_REQUESTS, "a timer message (likewise, all but cancellations)"),
    TIMER_OUT_MS: "written by the broker alone",
    TRAN_MSG: "a half message (the frame handler of transactions takes plain ones)",
    PRODUCER_GROUP: "written with half messages",
    POP_CK: "a message that a consumer of POP sends back",
    REAL_TOPIC: "written by the broker alone",
    MULTI_DISPATCH: "the message goes to LMQs as well (the frame handler of options takes existing ones)",
    MULTI_OFFSET: "written by the broker alone",
    LITE_TOPIC: "the message goes to its lite topic's LMQ as well",
    INNER_NUM: "a batch in one record",
    INNER_BASE: "a batch in one record",
    "MSG_REGION": "the broker replaces the value",
    "TRACE_ON": "the broker replaces the value",
    "CLUSTER": "the broker replaces the value",
    "__CRC32#": "the handler verifies the checksum",
    DEDUP_KEY: "a duplicate is not stored, unless dedupWindowMillis is 0 (the frame handler of options takes new keys)",
    ACK_LEVEL: "the message is answered by its own level (likewise)",
    PRIORITY: "the priority names the queue (likewise, plain numbers)",
}
# Only while enableTopicMessageTypeCheck is set.
TYPED_PROPERTIES: Mapping[str, str] = {SHARDING_KEY: "an ordered message, which a topic for others refuses"}
# Beyond those above: what a half message and a delayed message may not have.
HALF_PROPERTIES: Mapping[str, str] = {
    **dict.fromkeys((TRANSACTION_ID, REAL_QUEUE_ID, CHECK_TIMES, PREPARED_QUEUE_OFFSET), "written by the broker alone"),
    IMMUNITY: "the check waits longer than others",
}  # fmt: skip
DELAYED_PROPERTIES: Mapping[str, str] = {REAL_QUEUE_ID: "written by the broker alone"}
# Properties of a batch's request, and of a message in a batch. Other properties have no effect there.
BATCH_PROPERTIES: Mapping[str, str] = {DELAY: "the handler refuses the batch"}
BATCH_MESSAGE_PROPERTIES: Mapping[str, str] = {MULTI_OFFSET: "the handler takes the property out"}


def excluded_properties(config: BrokerConfig) -> frozenset[str]:
    """The names of properties with which a send is left to the handlers."""
    names = frozenset(PROPERTIES)
    if not config.dedup_window_millis:
        names -= {DEDUP_KEY}  # which means nothing then
    return names | frozenset(TYPED_PROPERTIES) if config.enable_topic_message_type_check else names


def excluded_from_delayed(names: frozenset[str]) -> frozenset[str]:
    """The same of delayed messages; `names` are those of any send."""
    return (names - {DELAY, *TIMER_DELAYS}) | frozenset(DELAYED_PROPERTIES)


def excluded_from_options(names: frozenset[str]) -> frozenset[str]:
    """The same of messages with options; `names` are those of any send."""
    options = {ACK_LEVEL, DEDUP_KEY, MULTI_DISPATCH}
    # Where types are checked, a topic for messages with a priority takes no others.
    return names - (options if names.issuperset(TYPED_PROPERTIES) else options | {PRIORITY})


def excluded_from_half(names: frozenset[str]) -> frozenset[str]:
    """The same of half messages; `names` are those of any send."""
    return (names - {TRAN_MSG, PRODUCER_GROUP}) | frozenset(HALF_PROPERTIES)


# --- checks of each frame

_JAVA = "Java reads more forms of a number than both backends do"
_REFUSED = "the handler refuses the request"
_RARE = "rare: clients use the JSON header unless they are configured otherwise"
ALL, GUARDED = "any request", "a request of a peer that has to sign"
STORE, SEND, BATCH = "any send", "a send of one message (10, 310)", "a batch (320)"
PULL, DELAYED, HALF = "a pull (11, 361)", "a delayed message (310)", "a half message (310)"
OPTIONS = "a send with an ack level, a dedup key, a priority or LMQs (310)"
SEND_BACK = "a message sent back (36)"
END, DELIVERY, POP = "END_TRANSACTION (37)", "the delivery of a due message", "POP (200050, 200051)"
# Request -> the conditions under which it is left to the handlers (a delivery: to `delay/redelivery.py`).
FRAMES: Mapping[str, tuple[Exclusion, ...]] = {
    ALL: (
        Exclusion("a request code that no frame handler has registered for", "a handler serves the request"),
        Exclusion(f"a header of more than {HEADER_BYTES_MAX:,} bytes", "the connection's decoder refuses the frame"),
        Exclusion("a header that does not have code, flag, opaque and extFields in their types", "the decoder knows each error"),
        Exclusion("a flag other than 0 (request) and 2 (one-way)", "the frame is a reply, for example"),
        Exclusion("an opaque of more than 32 bits", "the decoder knows each error"),
        Exclusion(f"a number not in ASCII digits, or of more than {NUMBER_CHARS_MAX} characters or 64 bits", _JAVA),
    ),
    GUARDED: (
        Exclusion("a missing or wrong signature, or a user without the permission", _REFUSED),
        Exclusion(f"a header of more than {GUARDED_FIELDS_MAX} fields", "bounds the work for a peer without a valid signature"),
        Exclusion(f"an access key, topic or group of more than {GUARDED_TEXT_CHARS_MAX} characters", "grants are remembered by these texts"),
        Exclusion("a send that names LMQs", "each LMQ needs a separate permission"),
        Exclusion("the field _UNIQUE_KEY_QUERY", "clients up to 4.9.3 do not sign this field"),
    ),
    STORE: (
        Exclusion("a broker that is a slave, fenced or overloaded, or whose store is not writable", "the handler says which"),
        Exclusion("fewer replicas than an acknowledgement needs, or a start time in the future", _REFUSED),
        Exclusion("WAIT=false while an acknowledgement depends on a lease", "the handler checks the lease once more"),
        Exclusion("a topic that does not exist, or is excluded below", "the handler creates the topic or refuses the message"),
        Exclusion("a queue id outside the topic, or not in plain digits", "the handler chooses a queue or refuses the message"),
        Exclusion("a queue of another kind than ConsumeQueue", "an append writes more than a queue entry"),
        Exclusion("a sysFlag beyond compression and multiple tags", "the message is part of a transaction, for example"),
        Exclusion("no UNIQ_KEY, or one not of ASCII letters and digits", "a reply would have to escape the text"),
        Exclusion("a property without a value, or without its separators", "handlers leave such a pair out"),
        Exclusion(f"properties of more than {PROPERTIES_BYTES_MAX:,} bytes", _REFUSED),
        Exclusion("a body larger than maxMessageSize", _REFUSED),
    ),
    SEND: (
        Exclusion("a batch flag other than false and 0", "the body holds several messages"),
        Exclusion("a property that is excluded below", "the message is more than a record to store"),
    ),
    BATCH: (
        Exclusion(
            f"more than {FAST_BATCH_ENTRIES_MAX:,} messages or {FAST_BATCH_HASHES_MAX:,} index keys",
            "the handler lets other connections in after each part",
        ),
        Exclusion("sizes that do not add up", _REFUSED),
        Exclusion("messages beyond the end of the queue's current file", "one run goes to one file"),
        Exclusion(f"the property {', '.join(BATCH_PROPERTIES)} of the batch", "; ".join(BATCH_PROPERTIES.values())),
        Exclusion(
            f"the property {', '.join(BATCH_MESSAGE_PROPERTIES)} of a message",
            "; ".join(BATCH_MESSAGE_PROPERTIES.values()),
        ),
    ),
    PULL: (
        Exclusion("a one-way request", "a pull without a reply does nothing"),
        Exclusion("an expression type other than TAG and SQL92", _REFUSED),
        Exclusion(f"an expression of more than {EXPRESSION_CHARS_MAX:,} characters", _REFUSED),
        Exclusion("an expression for which there is no native program", "both backends serve the same requests"),
        Exclusion("a group or topic that is excluded below", "the handler answers or refuses the pull"),
        Exclusion("an offset outside the queue", "the handler corrects the offset"),
        Exclusion("messages that may have left the memory", "the handler reads them off the event loop"),
        Exclusion("no message found, and the pull may not wait", "the handler knows what to answer"),
        Exclusion(f"a reply of more than {FRAME_BYTES_MAX:,} bytes", "the handler reports it"),
    ),
    DELAYED: (
        Exclusion("a binary header", _RARE),
        Exclusion("two properties that request a delay", "the handler knows which one counts"),
        Exclusion(f"a level above {LEVEL_MAX} or not configured, or with leading zeros", "the handler corrects the level"),
        Exclusion(f"a time not in plain digits, or of more than {DIGITS_MAX}", _REFUSED),
        Exclusion("a time that has passed, or exceeds timerMaxDelaySec", "the handler delivers immediately or refuses"),
        Exclusion("a broker that takes no delayed messages now", "the handler knows why"),
    ),
    OPTIONS: (
        Exclusion("a binary header", _RARE),
        Exclusion("an ack level that does not exist", _REFUSED),
        Exclusion("an ack level that does not wait, while an acknowledgement depends on a lease", "the handler checks the lease once more"),
        Exclusion("a dedup key of a known message, or of more than 255 characters", "the handler answers with the earlier message, or refuses"),
        Exclusion("a dedup key while the keys in the log are not known", _REFUSED),
        Exclusion(f"a priority not in plain digits, or of more than {PRIORITY_CHARS_MAX}, or with {SHARDING_KEY}", "the handler knows what counts"),
        Exclusion(f"LMQs that do not exist yet or are those of lite topics, more than {LMQS_MAX}, or one twice", "the handler creates queues, notifies lite consumers, and refuses too many"),
        Exclusion("a priority while enableTopicMessageTypeCheck is set", "the handler compares each message's type with the topic's"),
    ),
    HALF: (
        Exclusion("a binary header", _RARE),
        Exclusion("TRAN_MSG other than true, or no producer group", "the handler knows each error"),
        Exclusion("reconsumeTimes above 0", "no producer sends such a half message"),
        Exclusion("a half queue of another kind than ConsumeQueue", "an append writes more than a queue entry"),
        Exclusion("a broker that takes no half messages now", _REFUSED),
    ),
    END: (
        Exclusion("a binary header", _RARE),
        Exclusion("a request that is not one-way", "clients end transactions one-way; the handler writes the reply"),
        Exclusion("a transaction that is not open, or with other offsets", "the handler reads the log"),
        Exclusion("a topic other than the half message's", "access control checked the topic in the request"),
        Exclusion("a half message that the fast path did not store", "the end of its properties is unknown"),
        Exclusion("a half message with WAIT other than true", "the handler writes the property again"),
        Exclusion("a half message with CHECK_IMMUNITY_TIME_IN_SECONDS", "the handler keeps the time of its check"),
    ),
    SEND_BACK: (
        Exclusion("a binary header", _RARE),
        Exclusion("any of them where access control is on", "the handler checks the permission for the record's topic"),
        Exclusion(f"one of the fields {', '.join(SEND_BACK_EXTRAS)}, or unitMode", "Aerobee's consumers say more, of which the handler knows"),
        Exclusion("a delay level below 0, or tries that are used up", "the handler makes a dead letter"),
        Exclusion("a group without a retry topic that has its queues", "the handler creates groups and topics"),
        Exclusion("an offset outside the log's current file, or at which no record begins", "the handler reads the file or refuses"),
        Exclusion(f"a record of more than {SEND_BACK_RECORD_BYTES_MAX} bytes", "a thousand small requests of one burst would store gigabytes in one iteration of the event loop"),
        Exclusion("a record with an IPv6 host, a sysFlag beyond compression and multiple tags, or a wrong checksum", "the handler knows each form"),
        Exclusion(f"a property twice, more than {SEND_BACK_PAIRS_MAX}, or one that begins with {', '.join(SEND_BACK_SPECIAL)}", "the handler knows which counts"),
        Exclusion("a broker that takes no delayed messages now", "the handler knows why"),
    ),
    DELIVERY: (
        Exclusion("a record with an IPv6 host, or with a magic other than MAGIC_V1", "its head has other offsets"),
        Exclusion("a body with a wrong checksum, or properties without values", "redelivery reports them"),
        Exclusion("a property that begins with INNER_", "the message goes to several queues"),
        Exclusion("a real topic or queue that does not exist, or is the broker's own", "redelivery decides where the message goes"),
    ),
    POP: (
        Exclusion("a binary header, or members in another order than code first", "the first bytes of a read tell POP apart"),
        Exclusion("an ordered pop, or an acknowledgement of an ordered message", "handlers keep the order of a queue"),
        Exclusion("messages that may have left the memory", "the handler reads them off the event loop"),
        Exclusion("an acknowledgement while enablePopBufferMerge is set", "the buffer takes it"),
        Exclusion("an acknowledgement of a message that is not in flight at this broker", "the handler knows which error"),
    ),
}  # fmt: skip
