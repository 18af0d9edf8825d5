"""The subject of each broker setting, by which the console groups them."""

from __future__ import annotations

import re

OTHER = "Other"
# (subject, keys as a regular expression); the first that matches counts, the order is that of the page.
_RULES: tuple[tuple[str, str], ...] = (
    (
        "Access control",
        r"auth.*|acl.*|initAuthenticationUser|innerClientAuth.*|accessOpenListeners|adminOpen|auditLog.*",
    ),
    ("Metrics", r"metrics?[A-Z].*"),
    ("Timers and delayed messages", r"timer.*|messageDelayLevel|appendTopicForTimer.*|.*[rR]ecallMessage.*|allowRecall.*"),
    ("Transactions", r"transaction.*|rejectTransactionMessage"),
    ("POP", r"pop[A-Z].*|.*Pop.*|defaultMessageRequestMode"),
    ("Filters", r".*[fF]ilter.*|.*Bloom.*|.*ConsumeQueueExt"),
    (
        "Replication and controllers",
        r"ha[A-Z].*|brokerRole|(?i:.*controller.*)|.*[iI]nSync(Replicas|StateSet)|totalReplicas|asyncLearner"
        r"|enableSlaveActingMaster|slave.*|offsetCheckInSlave|sync(Broker|FromLast).*|checkSyncStateSetPeriod"
        r"|brokerElectionPriority|brokerHeartbeatInterval|brokerNotActiveTimeoutMillis|storePath(Epoch|BrokerId).*"
        r"|enableRemoteEscape|forwardTimeout",
    ),
    ("Retention and disk", r"fileReservedTime|deleteWhen|deleteFile.*|disk.*|clean(Resource|File).*|commitLogReserveBytes"),
    (
        "Storage",
        r"mapped.*|mapperFile.*|storePath.*|flush.*|syncFlushTimeout|maxHashSlotNum|maxIndexNum|messageIndexEnable"
        r"|check(CRC|Queues).*|truncateCorruptLog|hotReadBytes|accessMessageInMemory.*|memoryBytes|enableMultiDispatch",
    ),
    (
        "Listeners and connections",
        r"listen.*|bindAddress|brokerIP\d|advertisedListeners|server(Channel|Connections).*|tls.*|grpc.*|proxyProtocolFrom"
        r"|frameReceive.*|pendingReplyBytesMax|channelExpiredTimeout|enableVipListener|startAcceptSend.*|.*BytesMax",
    ),
    (
        "Broker and registration",
        r".*[rR]egist(er|ration).*|namesrvAddr|compatibleWithOldNameSrv|serverLoadBalancerEnable|broker(Name|Id|ClusterName|Permission)"
        r"|regionId|(cluster|broker)TopicEnable|configBlackList|brokerFastFailureEnable",
    ),
    (
        "Topics and messages",
        r"topic.*|autoCreateTopic.*|defaultTopicQueueNums|clearRetryTopic.*|maxMessageSize|dedup.*|enableMixedMessageType"
        r"|enableTopicMessageTypeCheck|traceOn|.*[tT]raceTopic.*|storeReplyMessageEnable|waitTimeMillsInSendQueue|.*[lL]mq.*|defaultQueryMaxNum",
    ),
    (
        "Consumers and groups",
        r".*[gG]roup.*|.*[pP]ull.*|.*[pP]olling.*|.*[oO]ffset.*|client.*|notifyConsumerIds.*|maxTransfer.*|maxMsgsNumBatch|orderly.*"
        r"|subscription.*|priority.*|useSeparateRetryQueue|enableRetryTopicV2|.*Consumer.*|estimateAccumulation",
    ),
)  # fmt: skip
SUBJECTS = (*(subject for subject, _ in _RULES), OTHER)
_PATTERNS = tuple((subject, re.compile(pattern)) for subject, pattern in _RULES)


def subject_of(key: str) -> str:
    """The subject of a broker setting; "Other" for a key that Aerobee's brokers do not have."""
    return next((subject for subject, pattern in _PATTERNS if pattern.fullmatch(key)), OTHER)
