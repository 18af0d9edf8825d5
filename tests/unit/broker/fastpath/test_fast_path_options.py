"""Sends with an ack level, a dedup key or a priority, by both backends of the fast path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aerobee.broker.fastpath.choice import NATIVE, PYTHON, choose_backend
from aerobee.broker.fastpath.permits import HOLDS
from aerobee.broker.send.option_hooks import OptionFastPath
from aerobee.errors import ConfigError
from aerobee.lite_topic import lite_queue
from aerobee.message import decode_record, pack_host
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.frame import decode_frame
from tests.fuzz.fastpath_counterparts import EPOCH, Counterpart
from tests.unit.broker.sending import send_frame

HOST = pack_host("10.0.0.1", 1)
KEY = "UNIQ_KEY\x01U1\x02WAIT\x01true\x02"


@pytest.fixture(params=(PYTHON, NATIVE))
def counterpart(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    try:
        choose_backend(request.param)
    except ConfigError as error:
        pytest.skip(str(error))
    made = Counterpart(tmp_path, request.param)
    yield made
    made.close()


def frame(text: str = "", topic: str = "TopicNormal", **fields: Any) -> bytes:
    return send_frame(topic, properties=KEY + text, **fields)


def serve(counterpart: Counterpart, *frames: bytes) -> Any:
    """The backend's result; every frame is served."""
    data = b"".join(frames)
    result = counterpart.fast_path._backend.burst(
        data, 0, HOST, counterpart.store.store_time_now(), True, True
    )
    counterpart.store.burst_done()
    assert result.used == len(data)
    return result


def is_left(counterpart: Counterpart, data: bytes) -> bool:
    used = counterpart.fast_path._backend.burst(data, 0, HOST, 1_000, True, True).used
    return bool(used == 0)


def fields_of(reply: bytes) -> dict[str, str]:
    return decode_frame(reply).ext or {}


@pytest.mark.parametrize(
    "send", [frame("ACK_LEVEL\x01stored\x02"), frame(topic="TopicStored")], ids=["message", "topic"]
)
def test_a_stored_level_is_answered_immediately(counterpart: Counterpart, send: bytes) -> None:
    result = serve(counterpart, send)
    found = fields_of(result.replies)
    level = {name: found[name] for name in found if name.startswith("aerobee")}
    end = str(counterpart.store.log.end)
    assert level == {"aerobeeAck": "stored", "aerobeeEpoch": str(EPOCH), "aerobeeOffset": end}
    assert not result.leveled_replies


def test_replies_wait_for_their_level_and_count_apart(counterpart: Counterpart) -> None:
    plain, flushed = frame(), frame("ACK_LEVEL\x01flushed\x02")
    result = serve(counterpart, plain, flushed, frame(topic="TopicSafe"), flushed)
    assert len(result.replies) == len(serve(counterpart, plain).replies)
    levels = [(level, tuple(tuple(each) for each in answers)) for level, _, answers in result.leveled_replies]
    assert levels == [("flushed", ((310, 2),)), ("flushed+replicated", ((310, 1),))]
    assert fields_of(result.leveled_replies[1][1])["aerobeeAck"] == "flushed+replicated"


def test_the_messages_level_counts_more_than_the_topics(counterpart: Counterpart) -> None:
    result = serve(counterpart, frame("ACK_LEVEL\x01stored\x02", "TopicSafe"))
    assert fields_of(result.replies)["aerobeeAck"] == "stored"


def test_a_level_without_wait_is_answered_immediately(counterpart: Counterpart) -> None:
    send = send_frame(properties="UNIQ_KEY\x01U1\x02WAIT\x01false\x02ACK_LEVEL\x01flushed\x02")
    assert fields_of(serve(counterpart, send).replies)["aerobeeAck"] == "flushed"


def test_a_level_that_does_not_wait_is_left_under_a_lease(counterpart: Counterpart) -> None:
    counterpart.fast_path._permits.numbers[HOLDS] = 2
    assert is_left(counterpart, frame("ACK_LEVEL\x01stored\x02"))
    assert not is_left(counterpart, frame("ACK_LEVEL\x01replicated\x02"))


def test_a_topic_that_changes_its_level_is_looked_up_again(counterpart: Counterpart) -> None:
    serve(counterpart, frame(topic="TopicStored"))
    counterpart.topics.put(TopicConfig("TopicStored", 4, 4, attributes={"ack.level": "flushed"}))
    assert serve(counterpart, frame(topic="TopicStored")).leveled_replies
    counterpart.topics.put(TopicConfig("TopicStored", 4, 4))
    assert "aerobeeAck" not in fields_of(serve(counterpart, frame(topic="TopicStored")).replies)


def test_a_second_message_with_a_key_is_left_to_the_handler(counterpart: Counterpart) -> None:
    first, again = frame("DEDUP_KEY\x01d1\x02"), frame("DEDUP_KEY\x01d1\x02", "TopicOrder")
    result = serve(counterpart, first, again)  # of another topic
    end = counterpart.store.log.end
    assert is_left(counterpart, first)
    counterpart.clock.advance(100)  # the window has expired
    serve(counterpart, first)
    assert counterpart.store.log.end > end
    assert result.stored_count == 2


def test_keys_in_one_burst_are_compared_with_each_other(counterpart: Counterpart) -> None:
    one = frame("DEDUP_KEY\x01d1\x02")
    result = counterpart.fast_path._backend.burst(
        one * 2, 0, HOST, counterpart.store.store_time_now(), True, True
    )
    assert result.used == len(one)
    assert result.is_slow


def test_keys_not_known_yet_leave_a_message_to_the_handler(counterpart: Counterpart) -> None:
    counterpart.duplicates._unserved.put(("deduplication",), "the log is read")
    assert is_left(counterpart, frame("DEDUP_KEY\x01d1\x02"))


def test_a_key_means_nothing_without_a_window(counterpart: Counterpart) -> None:
    counterpart.live.replace(dedup_window_millis=0)
    one = frame("DEDUP_KEY\x01d1\x02")
    assert serve(counterpart, one, one).stored_count == 2
    assert not len(counterpart.duplicates)


@pytest.mark.parametrize(("priority", "queue_id"), [("0", 0), ("2", 2), ("3", 2), ("999999999", 2)])
def test_a_priority_names_the_queue(counterpart: Counterpart, priority: str, queue_id: int) -> None:
    counterpart.topics.put(TopicConfig("TopicNormal", 4, 3))
    result = serve(counterpart, frame(f"_SYS_MSG_PRIORITY_\x01{priority}\x02", queue="1"))
    record = decode_record(counterpart.store.read_record(0) or b"")
    assert (record.queue_id, fields_of(result.replies)["queueId"]) == (queue_id, str(queue_id))


def test_a_priority_is_left_where_types_are_checked(counterpart: Counterpart) -> None:
    ordered = frame("_SYS_MSG_PRIORITY_\x011\x02__SHARDINGKEY\x01s\x02")
    assert is_left(counterpart, ordered)
    counterpart.live.replace(enable_topic_message_type_check=True)
    assert is_left(counterpart, frame("_SYS_MSG_PRIORITY_\x011\x02"))


def test_the_reply_waits_until_the_log_has_the_level(counterpart: Counterpart) -> None:
    """Through the shell: what is requested is flushed, and the reply is not written before."""
    connection: Any = counterpart.connection
    data = frame("ACK_LEVEL\x01flushed\x02")
    assert counterpart.fast_path.burst(connection, data, 0) == len(data)
    assert not connection.written
    assert counterpart.ack.waiting_count == 1
    counterpart.store.flush_now()
    counterpart.run_soon()
    assert fields_of(b"".join(connection.written))["aerobeeAck"] == "flushed"


def test_a_message_has_an_entry_in_each_of_its_lmqs(counterpart: Counterpart) -> None:
    both, one = "%LMQ%a,%LMQ%b", "%LMQ%b"
    serve(counterpart, *(frame(f"INNER_MULTI_DISPATCH\x01{names}\x02") for names in (both, one, both)))
    records = counterpart.stored()
    offsets = [record.properties["INNER_MULTI_QUEUE_OFFSET"] for record in records]
    assert offsets == ["0,0", "1", "1,2"]
    queues = [counterpart.store.queues[name, 0] for name in ("%LMQ%a", "%LMQ%b")]
    assert [queue.readable_max for queue in queues] == [2, 3]


def test_an_lmq_that_does_not_exist_is_left_to_the_handler(counterpart: Counterpart) -> None:
    assert is_left(counterpart, frame("INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%new\x02"))
    assert is_left(counterpart, frame("INNER_MULTI_DISPATCH\x01TopicNormal\x02"))
    counterpart.store.queue("%LMQ%new", 0)
    assert not is_left(counterpart, frame("INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%new\x02"))


def test_an_lmq_that_was_made_again_is_looked_up_again(counterpart: Counterpart) -> None:
    send = frame("INNER_MULTI_DISPATCH\x01%LMQ%a\x02")
    serve(counterpart, send)
    counterpart.store.queues.pop(("%LMQ%a", 0))
    assert is_left(counterpart, send)
    counterpart.store.queue("%LMQ%a", 0)
    serve(counterpart, send)
    assert counterpart.stored()[-1].properties["INNER_MULTI_QUEUE_OFFSET"] == "0"


def test_a_full_file_of_an_lmq_is_followed_by_the_next(counterpart: Counterpart) -> None:
    """Its queue has 200 entries in a file."""
    sends = [frame(f"INNER_MULTI_DISPATCH\x01%LMQ%{name}\x02") for name in "aab"] * 100
    serve(counterpart, *sends)
    assert [counterpart.store.queues[f"%LMQ%{name}", 0].max_offset for name in "ab"] == [200, 100]
    serve(counterpart, *sends)
    assert counterpart.store.queues["%LMQ%a", 0].max_offset == 400


def test_a_send_to_an_lmq_itself_is_left_to_the_handler(counterpart: Counterpart) -> None:
    counterpart.topics.put(TopicConfig("%LMQ%a", 1, 1))  # as the broker's table answers for any LMQ
    through = frame("INNER_MULTI_DISPATCH\x01%LMQ%a\x02")
    backend, now_ms = counterpart.fast_path._backend, counterpart.store.store_time_now()
    used = backend.burst(through + frame(topic="%LMQ%a", queue="0"), 0, HOST, now_ms, True, True).used
    queue = counterpart.store.queues["%LMQ%a", 0]
    assert (used, queue.max_offset) == (len(through), 1)


def test_messages_for_the_lmq_of_a_lite_topic_are_left_to_the_handler(counterpart: Counterpart) -> None:
    """Whoever serves lite topics is notified of each message there."""
    store = counterpart.store
    hooks = OptionFastPath(duplicates=counterpart.duplicates, epoch=lambda: 0, store=store)
    for lmq in ("%LMQ%a", lite_queue("chat", "room42")):
        store.queue(lmq, 0)
    assert hooks.lmq("%LMQ%a") is store.queues["%LMQ%a", 0]
    assert hooks.lmq(lite_queue("chat", "room42")) is None
