"""Well-formed requests that mean harm: every request of a part, every field of it, with values that no client should send.

The requests come from the handler tables of the running parts. Their fields are read from the handlers' source: each
`request.text("topic")`, `request.integer("queueId")` of the module that serves a code names a field and its kind. Bodies
begin as the bodies of the protocol (remoting/body), then one leaf or more is replaced.
"""

from __future__ import annotations

import inspect
import json
import random
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from aerobee.message import MessageQueue
from aerobee.remoting.body.data_version import DataVersion
from aerobee.remoting.body.heartbeat import ConsumerData, HeartbeatData, ProducerData
from aerobee.remoting.body.message_queue import queue_to_dict
from aerobee.remoting.body.register_broker import RegisterBrokerBody
from aerobee.remoting.body.subscription import SubscriptionData
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig
from aerobee.remoting.body.topic_config import TopicConfig, TopicConfigSerializeWrapper
from aerobee.remoting.command import FLAG_ONEWAY, RemotingCommand, SerializeType
from aerobee.remoting.peer import Handler

_READ = re.compile(r"""request\.(text|integer|int32|boolean|field)\(\s*"([^"]+)\"""")
_SEND_FIELDS = {
    **dict.fromkeys("abcin", "text"),
    **dict.fromkeys("defghjl", "integer"),
    "k": "boolean",
    "m": "boolean",
}
BODY_BYTES_MAX = 4 << 20  # so that the frame can hold it
_LONG_SEND_FIELDS = {
    **dict.fromkeys(("producerGroup", "topic", "defaultTopic", "properties"), "text"),
    **dict.fromkeys(
        ("defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp", "flag", "reconsumeTimes"), "integer"
    ),
    **dict.fromkeys(("unitMode", "batch"), "boolean"),
}
_PULL_FIELDS = {
    **dict.fromkeys(("consumerGroup", "topic", "subscription", "expressionType"), "text"),
    **dict.fromkeys(
        ("queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset", "suspendTimeoutMillis"), "integer"
    ),
    "subVersion": "integer",
}
_MORE_FIELDS = {10: _LONG_SEND_FIELDS, 324: _LONG_SEND_FIELDS, 11: _PULL_FIELDS, 361: _PULL_FIELDS}
SENDS = {10, 310, 320, 324, 325}
STORING = SENDS | {11, 15, 34, 37, 36, 361, 25, 200_050, 200_051, 200_052, 200_151}  # what state comes from
PROPERTIES = {"i", "properties"}  # of a message, one text
# Whoever may call these takes a topic, a group or a broker away from every client: until there is access control they are not
# sent at all, or with no plain names.
LEFT_OUT = {104, 205}
WRAPPERS = {"aerobee.remoting.body_limits"}  # which read no fields themselves
COSTLY = {
    26,
    28,
    318,
    319,
}  # whole tables of settings or figures: requested less often than the others
NEVER_PLAIN = {17, 18, 103, 207, 215, 216, 217, 200, 225, 353}

PLAIN = (
    "t",
    "u",
    "g",
    "h",
    "%RETRY%g",
    "%RETRY%g_t",
    "%LMQ%x",
    "TBW102",
    "broker-a",
    "DefaultCluster",
    "127.0.0.1:1",
)
HOSTILE = (
    "", " ", ".", "..", "../../../outside+", "/tmp/outside+", "outside+/../victim", "%RETRY%g+../../outside", "a/b",
    "a\x00b", "a\nb", "a\r\nkvConfigPath=/tmp/outside", "a=b", "\\u000akvConfigPath=x", "@", "a@b", "+", "%", "%s%n", "null",
    "x" * 127, "x" * 128, "x" * 255, "x" * 256, "x" * 4_000, "ü" * 100, "\ud7ff\u2028", "%RETRY%" + "x" * 300, "%DLQ%victim",
    "%RETRY%victim", "rmq_sys_mine", "rmq_sys_wheel_timer", "rmq_sys_REVIVE_LOG_DefaultCluster", "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_REVIVE_GROUP",
    "TAG\x01x\x02", "WAIT\x01false\x02REAL_TOPIC\x01victim\x02REAL_QID\x010\x02", "a||b", "a OR", "((((((((", "*",
    "TRAN_MSG\x01true\x02PGROUP\x01g\x02", "INNER_MULTI_DISPATCH\x01%LMQ%../x,%LMQ%y\x02", "TIMER_DELAY_MS\x01-1\x02",
    "TIMER_OUT_MS\x01999999999999999\x02TIMER_DELIVER_MS\x011\x02", "DELAY\x0199999999999\x02", "UNIQ_KEY\x01\x01\x02\x02",
    "+reserve.time=--1", "+message.type=FIFO,+queue.type=BatchCQ", "DO_NOT_WAIT\x01falsework\x02", "x\\u000aTAG\x01y\x02",
    "KEYS\x01WAIT\x02", "NO\x01WAIT\x02false\x01x\x02", "DO_NOT_WAIT\x01false\x02", "WAIT\x01falsework\x02",
)  # fmt: skip
ESCAPED = "a\\u000akvConfigPath=x\\u000astorePathRootDir=x"
VAST = ("||".join(map(str, range(30_000))), "x" * 60_000, "\x01\x02" * 20_000, " " * 30_000)
LIST_BYTES_MAX = 1 << 21  # of a body's list that is repeated
NUMBERS = (
    0, 1, 2, -1, -2, -5, 7, 31, 32, 100, 1_024, 4_095, 4_096, 65_535, 65_536, 2**31 - 1, 2**31, -(2**31), 2**32, 2**62,
    2**63 - 1, -(2**63), 2**63, 1_700_000_000_000, 10**15,
)  # fmt: skip
NOT_NUMBERS = ("", "--1", "²", "1_000", " 1", "0x10", "1e5", "nan", "9" * 4_000, "true")
PLAUSIBLE = {
    "a": "g", "b": "t", "c": "TBW102", "d": "4", "defaultTopicQueueNums": "4", "group": "g", "consumerGroup": "g", "producerGroup": "g", "srcGroup": "g",
    "destGroup": "h", "groupName": "g", "maxMsgNums": "8", "maxNum": "8", "invisibleTime": "20000", "perm": "6",
    "readQueueNums": "4", "writeQueueNums": "4", "topicFilterType": "SINGLE_TAG", "clusterName": "DefaultCluster",
    "brokerName": "broker-a", "brokerAddr": "127.0.0.1:1", "defaultTopic": "TBW102", "subscription": "*", "exp": "*",
    "sysFlag": "4", "expressionType": "TAG", "expType": "TAG", "statsName": "TOPIC_PUT_NUMS", "key": "k", "endTimestamp": str(2**62),
}  # fmt: skip
_PLAUSIBLE_OF_KIND = {"text": "t", "field": "t", "integer": "0", "boolean": "false"}
PROPERTY_NAMES = (
    "WAIT", "NO_WAIT", "DO_NOT_WAIT", "KEYS", "TAGS", "UNIQ_KEY", "DELAY", "TIMER_DELAY_MS", "TIMER_DELAY_SEC",
    "TIMER_DELIVER_MS", "TIMER_OUT_MS", "TIMER_DEL_UNIQKEY", "REAL_TOPIC", "REAL_QID", "TRAN_MSG", "PGROUP", "INNER_NUM",
    "INNER_BASE", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET", "POP_CK", "1ST_POP_TIME", "RETRY_TOPIC",
    "ORIGIN_MESSAGE_ID", "__SHARDINGKEY", "CLUSTER", "REPLY_TO_CLIENT", "CORRELATION_ID", "DEDUP_KEY", "_SYS_MSG_PRIORITY_",
    "CHECK_IMMUNITY_TIME_IN_SECONDS", "TRANSACTION_CHECK_TIMES", "TRAN_PREPARED_QUEUE_OFFSET", "__transactionId__", "x",
)  # fmt: skip
PROPERTY_VALUES = (
    "", "true", "false", "falsework", "WAIT", "A", "k", "t", "victim", "0", "1", "18", "1000", "-1", "2147483648",
    "99999999999999999999", "%LMQ%a,%LMQ%b", "%LMQ%../x", "../x", "g", "p", "x y z", "é", "\ud7ff", "a\nb", "v" * 300,
)  # fmt: skip
WAITS, TRUTHS = ("WAIT", "NO_WAIT", "DO_NOT_WAIT"), ("true", "false", "falsework", "FALSE", "")
SEPARATORS = ("\x02", "\x02", "\x02", "\x02", "", "\x01", "\x02\x02")
TEXT_SETTINGS = ("deleteWhen", "productEnvName")  # which may be changed, to any text
SETTINGS = (
    "kvConfigPath", "configStorePath", "storePathRootDir", "storePathCommitLog", "brokerConfigPath", "configBlackList",
    "msgTraceTopicName", "rocketmqHome", "fileReservedTime", "deleteWhen", "unknown", "startAcceptSendRequestTimeStamp",
)  # fmt: skip


def _modules_of(handler: Any) -> set[str]:
    """The modules of a handler and of all that it wraps."""
    function = inspect.unwrap(getattr(handler, "__func__", handler))
    if not inspect.isfunction(function):
        return set()
    inside = [value for value in inspect.getclosurevars(function).nonlocals.values() if callable(value)]
    found = set[str]().union(*map(_modules_of, inside))
    return found if inside and function.__module__ in WRAPPERS else found | {function.__module__}


def fields_of(handlers: Mapping[int, Handler]) -> dict[int, dict[str, str]]:
    """Code -> field -> kind (text, integer, boolean), of the modules that hold the handlers."""
    found: dict[int, dict[str, str]] = {}
    for code, handler in handlers.items():
        text = "".join(inspect.getsource(sys.modules[name]) for name in sorted(_modules_of(handler)))
        kinds = {name: "integer" if kind == "int32" else kind for kind, name in _READ.findall(text)}
        found[code] = _MORE_FIELDS.get(code) or {**kinds, **(_SEND_FIELDS if code in SENDS else {})}
    return found


class HostileRequests:
    """Makes requests of one part. Everything follows from the random numbers."""

    def __init__(self, rng: random.Random, handlers: Mapping[int, Handler]) -> None:
        self._rng = rng
        self._fields = fields_of(handlers)
        codes = sorted(code for code in self._fields if code not in LEFT_OUT)
        self._codes = [code for code in codes for _ in range(_weight(code))]
        self.seen: list[str] = []  # texts of replies: handles, ids

    def next(self) -> RemotingCommand:
        rng = self._rng
        code = rng.choice(self._codes)
        fields = self._fields[code]
        if rng.random() < 0.6:  # one that would be served, but for a field or two
            ext = {name: PLAUSIBLE.get(name) or _PLAUSIBLE_OF_KIND[kind] for name, kind in fields.items()}
            for name in rng.sample(list(fields), min(len(fields), rng.choice((0, 0, 1, 2)))):
                ext[name] = self._field(code, name, fields[name])
            if code in NEVER_PLAIN:
                ext.update({name: self._name(code) for name in ("topic", "groupName") if name in ext})
        else:
            ext = {name: self._field(code, name, kind) for name, kind in fields.items() if rng.random() < 0.9}
        flag = FLAG_ONEWAY if rng.random() < 0.05 else 0
        kind = SerializeType.ROCKETMQ if code < 32_768 and rng.random() < 0.1 else SerializeType.JSON
        return RemotingCommand(
            code, ext, self._body(code), opaque=rng.randrange(1 << 30), flag=flag, serialize_type=kind,
            version=rng.choice((0, 63, 121, 317, 513, 612)),
        )  # fmt: skip

    def take(self, reply: RemotingCommand) -> None:
        """Remember what a reply says: the next requests use it where it does not belong."""
        self.seen += [value for value in (reply.ext or {}).values() if len(value) < 300]
        del self.seen[:-50]

    def _name(self, code: int) -> str:
        rng = self._rng
        if (
            code in NEVER_PLAIN
        ):  # what was seen may be a plain name: a topic without queues makes later sequences useless
            return self._text()
        if self.seen and rng.random() < 0.1:
            return rng.choice(self.seen)
        return self._text() if rng.random() < 0.4 else rng.choice(PLAIN)

    def _text(self) -> str:
        rng = self._rng
        return rng.choice(VAST) if rng.random() < 0.002 else rng.choice(HOSTILE)

    def _field(self, code: int, name: str, kind: str) -> str:
        is_properties = name in PROPERTIES and code in SENDS
        return self._properties() if is_properties and self._rng.random() < 0.8 else self._value(code, kind)

    def _properties(self) -> str:
        """A message's properties: names that mean something, values that look like other names, separators anywhere."""
        rng = self._rng
        pairs = []
        for _ in range(rng.choice((1, 1, 2, 3, 5))):
            names, values = (WAITS, TRUTHS) if rng.random() < 0.2 else (PROPERTY_NAMES, PROPERTY_VALUES)
            pairs.append(f"{rng.choice(names)}\x01{rng.choice(values)}{rng.choice(SEPARATORS)}")
        return "".join(pairs)

    def _value(self, code: int, kind: str) -> str:
        rng = self._rng
        if kind == "boolean":
            return rng.choice(("true", "false", "1", "", "x"))
        if kind == "integer":
            return str(
                rng.choice(NOT_NUMBERS) if rng.random() < 0.1 else rng.choice(NUMBERS[: rng.choice((3, 25))])
            )
        return self._name(code)

    def _body(self, code: int) -> bytes:
        rng = self._rng
        make = _BODIES.get(code)
        if make is None:
            return (
                rng.choice((b"", b"x", b"[]", b"{}", b"\x00" * 40))
                if rng.random() < 0.9
                else rng.randbytes(2_000)
            )
        body = make(self, code)
        if isinstance(body, bytes):
            return body
        for _ in range(rng.choice((0, 1, 1, 2, 5))):
            body = self._harmed(body)
        data = _encode(body)
        return data if len(data) < BODY_BYTES_MAX else data[:BODY_BYTES_MAX]

    def _harmed(self, body: Any) -> Any:
        """The tree with one part of it replaced, repeated, or nested."""
        rng = self._rng
        if isinstance(body, dict) and body and rng.random() < 0.85:
            key = rng.choice(list(body))
            return {**body, key: self._harmed(body[key])}
        if isinstance(body, list) and body and rng.random() < 0.85:
            at = rng.randrange(len(body))
            if rng.random() < 0.3:
                return (body * rng.choice((2, 2, 2, 30, 30, 1_000)))[
                    : min(1_000, 1 + LIST_BYTES_MAX // _size(body))
                ]
            return [*body[:at], self._harmed(body[at]), *body[at + 1 :]]
        if rng.random() < 0.8:
            return rng.choice((None, True, {}, [], -1, 2**63, 1.5, self._text(), rng.choice(NUMBERS)))
        deep: Any = "x"
        for _ in range(rng.choice((1, 70, 500))):
            deep = {"x": deep} if rng.random() < 0.5 else [deep]
        return deep

    def _heartbeat(self, code: int) -> Any:
        rng = self._rng
        consumers = tuple(
            ConsumerData(
                self._name(code), subscription_data_set=(SubscriptionData(self._name(code), sub_version=1),)
            )
            for _ in range(rng.choice((0, 1, 3)))
        )
        return HeartbeatData(
            rng.choice(("c", "d", self._name(code))), (ProducerData(self._name(code)),), consumers
        ).to_dict()

    def _topics(self, code: int) -> Any:
        return {
            "topicConfigList": [TopicConfig(self._name(code), *self._counts()).to_dict() for _ in range(2)]
        }

    def _groups(self, code: int) -> Any:
        return {"groupConfigList": [self._group(code) for _ in range(2)]}

    def _group(self, code: int) -> Any:
        return SubscriptionGroupConfig(self._name(code)).to_dict()

    def _locks(self, code: int) -> Any:
        queues = [queue_to_dict(MessageQueue(self._name(code), self._name(code), n)) for n in self._counts()]
        return {"consumerGroup": self._name(code), "clientId": self._name(code), "mqSet": queues}

    def _counts(self) -> tuple[int, int]:
        return self._rng.choice(NUMBERS), self._rng.choice(NUMBERS)

    def _registration(self, code: int) -> Any:
        table = {
            name: TopicConfig(name, *self._counts()) for name in (self._name(code), self._name(code), "plain")
        }
        body = RegisterBrokerBody(
            TopicConfigSerializeWrapper(table, DataVersion(0, self._rng.choice((1, 2)), 1))
        )
        return body.encode_compressed() if self._rng.random() < 0.3 else json.loads(body.encode())

    def _settings(self, code: int) -> Any:
        rng = self._rng
        lines = (
            f"{rng.choice(SETTINGS if rng.random() < 0.5 else TEXT_SETTINGS)}={rng.choice((*HOSTILE[:20], ESCAPED, ESCAPED, '-1', '99999999999999999999'))}"
            for _ in range(rng.choice((1, 1, 1, 2, 3)))
        )
        return "\n".join(lines).encode("utf-8", "replace")

    def _acks(self, code: int) -> Any:
        entry = {
            "c": self._name(code),
            "t": self._name(code),
            "r": "0",
            "b": self._rng.choice(("AQ==", "/" * 400, "!")),
        }
        numbers = {key: self._rng.choice(NUMBERS) for key in ("so", "rq", "pt", "it", "q")}
        return {"brokerName": self._name(code), "acks": [{**entry, **numbers}]}

    def _assignment(self, code: int) -> Any:
        names = {key: self._name(code) for key in ("topic", "consumerGroup", "clientId", "strategyName")}
        return {
            **names,
            "mode": "POP",
            "popShareQueueNum": self._rng.choice(NUMBERS),
            "messageModel": "CLUSTERING",
        }

    def _client_check(self, code: int) -> Any:
        text = self._name(code)
        data = SubscriptionData("t", text[:100], expression_type=self._rng.choice(("SQL92", "TAG", "x")))
        return {"subscriptionData": data.to_dict(), "clientId": text, "group": text}

    def _route(self, code: int) -> Any:
        queue = {
            "brokerName": self._name(code),
            "readQueueNums": 1,
            "writeQueueNums": self._rng.choice(NUMBERS),
            "perm": 6,
        }
        return {"queueDatas": [queue], "brokerDatas": []}


def _weight(code: int) -> int:
    """How often a request is made, against others."""
    return 1 if code in COSTLY else 15 if code in STORING else 5


def _encode(body: Any) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError:  # nested deeper, or numbers larger, than orjson writes
        return json.dumps(body).encode()


def _size(body: Any) -> int:
    return len(_encode(body)) or 1


_BODIES: dict[int, Callable[[HostileRequests, int], Any]] = {
    18: HostileRequests._topics, 25: HostileRequests._settings, 34: HostileRequests._heartbeat,
    41: HostileRequests._locks, 42: HostileRequests._locks, 46: HostileRequests._client_check,
    103: HostileRequests._registration, 200: HostileRequests._group, 217: HostileRequests._route,
    225: HostileRequests._groups, 318: HostileRequests._settings, 400: HostileRequests._assignment,
    401: HostileRequests._assignment, 200_151: HostileRequests._acks,
}  # fmt: skip
