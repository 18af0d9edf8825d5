"""Batches in the fast path: whatever their messages look like, what is cut by column is what is cut one by one."""

import random

import pytest

from aerobee.broker.fastpath.batch_layout import Alike, Layout, cut_batch, cut_mixed
from aerobee.broker.fastpath.topic import FastTopic
from aerobee.broker.send.send_header import FAST_BATCH_ENTRIES_MAX
from aerobee.remoting.body.topic_config import TopicConfig
from tests.unit.broker.sending import batch_body

IDS = ("7F0000012A9F00000123456789ABCDEF", "7F0000012A9F0000FEDCBA9876543210", "0" * 32, "N" * 32)
WAIT, TAGS, KEYS = "WAIT\x01true\x02", "TAGS\x01标签\x02", "KEYS\x01k1 k2  标\x02"


@pytest.fixture
def topic() -> FastTopic:
    return FastTopic(TopicConfig("TopicBatch", 4, 4))


def check(body: bytes, topic: FastTopic, *, alike: bool | None = None) -> None:
    cut, mixed = cut_batch(body, topic), cut_mixed(body, topic)
    assert alike is None or isinstance(cut, Alike) is alike
    assert (cut.byte_count, cut.message_count, list(cut.hashes)) == (
        mixed.byte_count,
        mixed.message_count,
        mixed.hashes,
    )
    shared = Layout(3, random.Random(1).randbytes(44), topic.field)
    records, entries, offsets = cut.lay_out(shared, 1 << 33, 77)
    assert (records, entries, list(offsets)) == mixed.lay_out(shared, 1 << 33, 77)
    assert list(cut.index_entries(offsets)) == list(mixed.index_entries(offsets))


@pytest.mark.parametrize("texts", [("{}" + WAIT,), ("{}" + WAIT + TAGS,), (TAGS, "{}", KEYS), (KEYS, "{}")])
@pytest.mark.parametrize("body_size", [0, 1, 128])
@pytest.mark.parametrize("count", [1, 2, 64])
def test_messages_of_one_layout_are_cut_by_column(
    topic: FastTopic, texts: tuple[str, ...], body_size: int, count: int
) -> None:
    rng = random.Random(body_size)
    text = "".join(texts)
    messages = [
        (rng.randbytes(body_size), text.format(f"UNIQ_KEY\x01{rng.choice(IDS)}\x02")) for _ in range(count)
    ]
    check(batch_body(*messages), topic, alike=True)


@pytest.mark.parametrize("key", ["lowercase", "标" * 3, "a-b", "x" * 130, "U"])
def test_keys_of_any_kind_have_the_same_hashes(topic: FastTopic, key: str) -> None:
    check(
        batch_body(*[(b"body", f"UNIQ_KEY\x01{key}\x02WAIT\x01true\x02")] * 3),
        topic,
        alike=key.isalnum() and key.isascii(),
    )


@pytest.mark.parametrize(
    "second",
    [
        (b"body.", "UNIQ_KEY\x01U2\x02WAIT\x01true\x02"),
        (b"body", "UNIQ_KEY\x01U22\x02WAIT\x01true\x02"),
        (b"body", "UNIQ_KEY\x01U2\x02WAIT\x01fals\x02"),
        (b"body", "UNIQ_KEY\x01U-\x02WAIT\x01true\x02"),
        (b"bod", "UNIQ_KEY\x01U2\x02WAITS\x01true\x02"),
        (b"body", "UNIQ_KEX\x01U2\x02WAIT\x01true\x02"),
    ],
)
def test_one_message_that_differs_is_seen(topic: FastTopic, second: tuple[bytes, str]) -> None:
    first = (b"body", "UNIQ_KEY\x01U1\x02WAIT\x01true\x02")
    check(batch_body(first, second, first), topic, alike=False)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "WAIT\x01true\x02",
        "UNIQ_KEY\x01U1",
        "XUNIQ_KEY\x01U1\x02",
        "UNIQ_KEY\x01U1\x02UNIQ_KEY\x01U2\x02",
        "UNIQ_KEY\x01U1\x02a\x01b",
    ],
)
def test_a_text_in_which_the_key_does_not_stand_where_it_seems_is_read_pair_by_pair(
    topic: FastTopic, text: str
) -> None:
    check(batch_body((b"body", text), (b"body", text)), topic, alike=False)


@pytest.mark.parametrize(
    "text",
    ["a\x02UNIQ_KEY\x01U1\x01b\x02", "UNIQ_KEY\x02U1\x01x\x02UNIQ_KEY\x01U1\x01y\x02"],
)
def test_a_text_whose_separators_do_not_come_in_turn_is_for_the_handler(topic: FastTopic, text: str) -> None:
    body = batch_body((b"body", text), (b"body", text))
    for cut in (cut_batch, cut_mixed):
        with pytest.raises(ValueError):
            cut(body, topic)


def test_a_random_batch_is_refused_or_cut_alike_both_ways(topic: FastTopic) -> None:
    rng = random.Random(5)
    for _ in range(3_000):
        size, text = (
            rng.randrange(4),
            f"{rng.choice(('', TAGS))}UNIQ_KEY\x01U1\x02{rng.choice(('', WAIT, KEYS))}",
        )
        body = bytearray(batch_body(*[(rng.randbytes(size), text)] * rng.randrange(1, 5)))
        for _ in range(rng.randrange(3)):
            body[rng.randrange(len(body))] = rng.choice((0, 1, 2, 3, 22, 255, rng.randrange(256)))
        try:
            cut_mixed(bytes(body), topic)
        except ValueError:
            with pytest.raises(ValueError):
                cut_batch(bytes(body), topic)
        else:
            check(bytes(body), topic)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (FAST_BATCH_ENTRIES_MAX + 1, "UNIQ_KEY\x01U{}\x02"),
        (FAST_BATCH_ENTRIES_MAX + 1, "{}\x01\x02"),
        (200, "UNIQ_KEY\x01U{}\x02KEYS\x01" + "k " * 200 + "\x02"),
    ],
)
def test_a_batch_that_is_too_large_for_one_turn_is_left_to_the_handlers(
    topic: FastTopic, count: int, text: str
) -> None:
    body = batch_body(*[(b"", text.format(f"{number:05}")) for number in range(count)])
    for cut in (cut_batch, cut_mixed):
        with pytest.raises(ValueError):
            cut(body, topic)
