"""Both backends leave to the handlers what the table says: a frame for each row of it (fastpath/exclusions.py)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aerobee.broker.fastpath import exclusions
from aerobee.broker.fastpath.choice import NATIVE, PYTHON, choose_backend
from aerobee.broker.fastpath.exclusions import (
    ALL,
    BATCH,
    DELAYED,
    DELIVERY,
    END,
    FRAMES,
    GUARDED,
    HALF,
    OPTIONS,
    POP,
    PULL,
    PULLS,
    SEND,
    SEND_BACK,
    STORE,
    TOPICS,
    PullContext,
    TopicContext,
)
from aerobee.broker.send.send_header import FAST_BATCH_ENTRIES_MAX
from aerobee.broker.state.config import BrokerConfig
from aerobee.errors import ConfigError
from aerobee.message import PROPERTIES_BYTES_MAX, pack_host
from aerobee.remoting.body.subscription import EXPRESSION_CHARS_MAX
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.command import FLAG_ONEWAY, RemotingCommand, SerializeType
from aerobee.remoting.frame import HEADER_BYTES_MAX, decode_frame, encode_frame
from tests.fuzz.fastpath_counterparts import Counterpart
from tests.unit.broker.pulling import pull_request
from tests.unit.broker.sending import batch_body, send_frame

HOST = pack_host("10.0.0.1", 1)
KEY = "UNIQ_KEY\x01U1\x02"
HALF_TEXT = KEY + "TRAN_MSG\x01true\x02PGROUP\x01PG\x02WAIT\x01true\x02"
BODY_BYTES_MAX = 100_000


def delayed(properties: str = "DELAY\x013\x02", **fields: Any) -> bytes:
    return send_frame("TopicDelay", properties=KEY + properties, **fields)


def option(properties: str = "ACK_LEVEL\x01stored\x02", **fields: Any) -> bytes:
    return send_frame(properties=KEY + properties, **fields)


def half(properties: str = HALF_TEXT, **fields: Any) -> bytes:
    return send_frame(properties=properties, **{"f": "4", **fields})


def batch(*messages: str, body: bytes | None = None, properties: str = KEY) -> bytes:
    made = batch_body(*[(b"b", text) for text in messages or (KEY,)])
    return send_frame("TopicBatch", made if body is None else body, code=320, properties=properties)


def pull(offset: int = 0, **fields: Any) -> bytes:
    return encode_frame(pull_request(offset, **fields))


def end(**fields: str) -> bytes:
    """The end of the half message that is the first record of the log."""
    ext = {
        "producerGroup": "PG", "transactionId": "U1", "tranStateTableOffset": "0", "commitLogOffset": "0", "commitOrRollback": "8",
    }  # fmt: skip
    return encode_frame(RemotingCommand(37, {**ext, **fields}, flag=FLAG_ONEWAY))


def send_back(**fields: str) -> bytes:
    """Sends the message back that is the first record of the log."""
    ext = {"offset": "0", "group": "group", "delayLevel": "3", "unitMode": "false", "maxReconsumeTimes": "16"}
    return encode_frame(RemotingCommand(36, {**ext, **fields}))


def changed(frame: bytes, **attributes: Any) -> bytes:
    command = decode_frame(frame)
    for name, value in attributes.items():
        setattr(command, name, value)
    return encode_frame(command)


def binary(frame: bytes) -> bytes:
    return changed(frame, serialize_type=SerializeType.ROCKETMQ.value)


# Kind -> an eligible frame.
ELIGIBLE: dict[str, Callable[[], bytes]] = {
    ALL: send_frame, STORE: send_frame, SEND: send_frame, BATCH: batch, PULL: pull, DELAYED: delayed, HALF: half, END: end,
    OPTIONS: option, SEND_BACK: send_back,
}  # fmt: skip
# Kind -> for each of its conditions a frame that meets it, or the test that brings it about.
EXAMPLES: dict[str, list[bytes | str]] = {
    ALL: [
        changed(send_frame(), code=105),
        changed(send_frame(), ext={**(decode_frame(send_frame()).ext or {}), "zz": "x" * HEADER_BYTES_MAX}),
        send_frame().replace(b'"opaque":7', b'"opaque":"'),
        changed(send_frame(), flag=1),
        changed(send_frame(), opaque=1 << 31),
        send_frame(queue="\u0661"),
    ],
    GUARDED: ["test_fast_path_access.py"] * 5,
    STORE: [
        "test_fast_path_gates.py",
        "test_fast_path_gates.py",
        "test_fast_path_gates.py",
        send_frame("TopicThatIsMissing"),
        send_frame(queue="01"),
        "test_fast_path_differential.py",
        send_frame(f="16"),
        send_frame(properties="UNIQ_KEY\x01a-b\x02"),
        send_frame(properties=KEY + "name\x01\x02"),
        send_frame(properties=KEY + "k\x01" + "v" * PROPERTIES_BYTES_MAX + "\x02"),
        send_frame(body=bytes(BODY_BYTES_MAX + 1)),
    ],
    SEND: [send_frame(m="true"), send_frame(properties=KEY + "CLUSTER\x01c\x02")],
    BATCH: [
        batch(body=batch_body(*[(b"", KEY)] * (FAST_BATCH_ENTRIES_MAX + 1))),
        batch(body=b"\x7f" + batch_body((b"b", KEY))[1:]),
        batch(body=batch_body(*[(b"", KEY)] * 201)),  # a file has 200 entries
        batch(properties=KEY + "DELAY\x011\x02"),
        batch(KEY + "INNER_MULTI_QUEUE_OFFSET\x017\x02"),
    ],
    PULL: [
        changed(pull(), flag=FLAG_ONEWAY),
        pull(expressionType="CLASS"),
        pull(subscription="T" * (EXPRESSION_CHARS_MAX + 1)),
        pull(expressionType="SQL92", subscription="(" * 70 + "a = 1" + ")" * 70),
        pull(consumerGroup="group-unknown"),
        pull(7),
        "test_fast_path_pull.py",
        pull(1),
        "test_fast_path_pull.py",
    ],
    DELAYED: [
        binary(delayed()),
        delayed("DELAY\x013\x02TIMER_DELAY_MS\x015000\x02"),
        delayed("DELAY\x0103\x02"),
        delayed("TIMER_DELAY_MS\x01+5000\x02"),
        delayed("TIMER_DELIVER_MS\x0112\x02"),
        "test_delay_backends.py",
    ],
    OPTIONS: [
        binary(option()),
        option("ACK_LEVEL\x01memory\x02"),
        "test_fast_path_options.py",
        option("DEDUP_KEY\x01" + "d" * 256 + "\x02"),
        "test_fast_path_options.py",
        option("_SYS_MSG_PRIORITY_\x01+1\x02"),
        option("INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%a\x02"),
        "test_fast_path_options.py",
    ],
    HALF: [
        binary(half()),
        half(HALF_TEXT.replace("true", "false", 1)),
        half(j="1"),
        "test_fast_path_differential.py",
        "test_fast_path_differential.py",
    ],
    END: [
        binary(end()),
        changed(end(), flag=0),
        end(commitLogOffset="1"),
        end(topic="TopicOrder"),
        "test_fast_path_differential.py",
        "test_fast_path_differential.py",
        "test_fast_path_differential.py",
    ],
    SEND_BACK: [
        binary(send_back()),
        "test_fast_path_access.py",
        send_back(delayMillis="5"),
        send_back(delayLevel="-1"),
        send_back(group="group-without-a-topic"),
        send_back(offset="7"),
        "test_send_back_backends.py",
        "test_send_back_backends.py",
        "test_send_back_backends.py",
        "test_send_back_backends.py",
    ],
    DELIVERY: ["test_delivery_backends.py"] * 4,
    POP: ["test_pop_fast_path.py"] * 5,
}


@pytest.fixture(params=(PYTHON, NATIVE))
def counterpart(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    try:
        choose_backend(request.param)
    except ConfigError as error:
        pytest.skip(str(error))
    made = Counterpart(tmp_path, request.param, max_message_size=BODY_BYTES_MAX)
    yield made
    made.close()


def serve(counterpart: Counterpart, frame: bytes) -> int:
    """How many bytes of it the backend serves."""
    used = counterpart.burst(frame, 0, HOST)[1]
    assert isinstance(used, int)
    return used


def prepare(counterpart: Counterpart, kind: str) -> None:
    if kind == END:
        assert serve(counterpart, half())
    elif kind == SEND_BACK:
        counterpart.topics.put(TopicConfig("%RETRY%group", 1, 1))
        assert serve(counterpart, send_frame())
    elif kind == PULL:
        assert serve(counterpart, send_frame())


@pytest.mark.parametrize("kind", ELIGIBLE)
def test_an_excluded_frame_is_left_by_both_backends(counterpart: Counterpart, kind: str) -> None:
    prepare(counterpart, kind)
    for row, example in zip(FRAMES[kind], EXAMPLES[kind], strict=True):
        if isinstance(example, bytes):
            end_before = counterpart.store.log.end
            assert serve(counterpart, example) == 0, row.condition
            assert counterpart.store.log.end == end_before, row.condition
    eligible = ELIGIBLE[kind]()
    assert serve(counterpart, eligible) == len(eligible)


def test_every_row_has_an_example() -> None:
    tests = {path.name for path in Path(__file__).parents[3].rglob("test_*.py")}
    assert {each for rows in EXAMPLES.values() for each in rows if isinstance(each, str)} <= tests
    assert EXAMPLES.keys() == FRAMES.keys()
    assert {kind: len(rows) for kind, rows in EXAMPLES.items()} == {
        kind: len(rows) for kind, rows in FRAMES.items()
    }


@pytest.mark.parametrize("name", exclusions.PROPERTIES)
def test_an_excluded_property_leaves_a_send_to_the_handlers(counterpart: Counterpart, name: str) -> None:
    value = "x" * 256  # longer than a dedup key, no ack level, and no number
    assert serve(counterpart, send_frame(properties=f"{KEY}{name}\x01{value}\x02")) == 0
    assert serve(counterpart, send_frame(properties=f"{KEY}{name}x\x01{value}\x02"))


def test_an_excluded_property_is_none_that_backends_read() -> None:
    """Native code does not compare these four with the table."""
    every = exclusions.excluded_properties(BrokerConfig(enable_topic_message_type_check=True))
    every |= {*exclusions.HALF_PROPERTIES, *exclusions.BATCH_PROPERTIES, *exclusions.BATCH_MESSAGE_PROPERTIES}
    assert every.isdisjoint({"UNIQ_KEY", "KEYS", "TAGS", "WAIT"})


def topic(name: str = "TopicNormal", **fields: Any) -> TopicConfig:
    return TopicConfig(name, 4, 4, **fields)


def topic_context(mapped: str = "", has_extended_queues: bool = False, **settings: Any) -> TopicContext:
    return TopicContext(BrokerConfig(**settings), {mapped}, has_extended_queues)


def pull_context(mapped: str = "", settings: dict[str, Any] | None = None, **fields: Any) -> PullContext:
    usual = {"code": 11, "serves_group": True, "is_readable": True, "awaits_reset": False}
    return PullContext(config=BrokerConfig(**(settings or {})), mapped_topics={mapped}, **{**usual, **fields})


# For each row of the table a topic that it excludes.
TOPIC_EXAMPLES = [
    (topic("SCHEDULE_TOPIC_XXXX"), topic_context()),
    (topic("%RETRY%group"), topic_context()),
    (topic("%LMQ%a"), topic_context()),
    (topic(), topic_context(mapped="TopicNormal")),
    (topic(), topic_context(has_extended_queues=True)),
    (topic(topic_filter_type="MULTI_TAG"), topic_context()),
    (topic(attributes={"queue.type": "BatchCQ"}), topic_context()),
    (topic(attributes={"cleanup.policy": "COMPACTION"}), topic_context()),
    (topic(attributes={"ack.level": "memory"}), topic_context()),
    (topic(attributes={"message.type": "FIFO"}), topic_context(enable_topic_message_type_check=True)),
    (topic(order=True), topic_context(broker_permission=4)),
]
PULL_EXAMPLES = [
    (group := SubscriptionGroupConfig("group"), topic(), pull_context(mapped="TopicNormal")),
    (SubscriptionGroupConfig("group", consume_enable=False), topic(), pull_context()),
    (group, topic(perm=2), pull_context()),
    (group, topic(), pull_context(serves_group=False)),
    (group, topic(), pull_context(settings={"subscription_conflict_policy": "refuse"})),
    (group, topic(), pull_context(settings={"reject_pull_consumer_enable": True})),
    (group, topic(), pull_context(code=361, settings={"lite_pull_message_enable": False})),
    (group, topic(), pull_context(awaits_reset=True)),
]


def test_each_row_of_topics_excludes_its_example_alone() -> None:
    for number, example in enumerate(TOPIC_EXAMPLES):
        held = [at for at, row in enumerate(TOPICS) if row.holds(*example)]
        assert held == [number], TOPICS[number].condition
    assert len(TOPIC_EXAMPLES) == len(TOPICS)
    assert not any(row.holds(topic(), topic_context()) for row in TOPICS)


def test_each_row_of_pulls_excludes_its_example_alone() -> None:
    for number, example in enumerate(PULL_EXAMPLES):
        held = [at for at, row in enumerate(PULLS) if row.holds(*example)]
        assert held == [number], PULLS[number].condition
    assert len(PULL_EXAMPLES) == len(PULLS)
    assert not any(row.holds(group, topic(), pull_context()) for row in PULLS)
