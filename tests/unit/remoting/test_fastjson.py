"""The dialect of fastjson: what is read, what is written, what is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerobee.errors import MalformedFrame
from aerobee.message import MessageQueue
from aerobee.remoting import fastjson
from aerobee.remoting.body.message_queue import offset_map, queue_of_key
from tests.rounds import rounds

QUEUE = MessageQueue("T", "b", 3)
QUEUE_KEY = b'{"brokerName":"b","queueId":3,"topic":"T"}'


def test_bare_integer_keys_are_read_as_text() -> None:
    assert fastjson.loads(b'{0:"a", -1 : {2:[]}}') == {"0": "a", "-1": {"2": []}}


def test_objects_as_keys_are_read_as_their_json() -> None:
    found = fastjson.loads(b'{"offsetTable":{{"topic":"T","brokerName":"b","queueId":3}:7}}')
    assert offset_map(found, "offsetTable") == {QUEUE: 7}


def test_quoted_objects_as_keys_are_read_too() -> None:
    found = fastjson.loads(json.dumps({"offsetTable": {QUEUE_KEY.decode(): 7}}).encode())
    assert offset_map(found, "offsetTable") == {QUEUE: 7}


def test_both_kinds_of_keys_are_written() -> None:
    assert fastjson.dumps({"a": {0: "x"}, "b": {QUEUE: 1}}) == b'{"a":{0:"x"},"b":{%s:1}}' % QUEUE_KEY
    assert fastjson.dumps([QUEUE]) == b"[%s]" % QUEUE_KEY


def test_pretty_form_has_tabs_and_no_blanks() -> None:
    value = {"dataVersion": {"counter": 1}, "t": {0: [1, 2], 1: {}}, "e": []}
    expected = (
        b'{\n\t"dataVersion":{\n\t\t"counter":1\n\t},\n\t"t":{\n\t\t0:[\n\t\t\t1,\n\t\t\t2\n\t\t],\n\t\t1:{}\n\t},'
        b'\n\t"e":[]\n}'
    )
    assert fastjson.dumps_pretty(value) == expected
    assert fastjson.loads(expected) == {"dataVersion": {"counter": 1}, "t": {"0": [1, 2], "1": {}}, "e": []}


def test_escapes_and_surrogates() -> None:
    assert fastjson.loads(b'{0:"\\u00e4\\n\\/\\ud83d\\ude00\\ud800"}') == {"0": "ä\n/😀\ufffd"}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"{0:1",
        b"{0:1,}x",
        b'{0:"a}',
        b'{0:"\\q"}',
        b'{0:"\\u12"}',
        b"{0 1}",
        b"{0:1 2:3}",
        b"[0:1]",
        b"{0:01}",
        b"{0:1}{",
        b"{0:NaN}",
        b"{0:1e5000x}",
        b"{[1]:1}",
        b"{0:" * 100,
        b"{{" * 100_000,
        b"{0:[" * 50_000,
        b"{0:" + b"9" * 5000 + b"}",
    ],
)
def test_what_is_neither_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedFrame):
        fastjson.loads(data)


def test_a_key_that_is_no_queue_is_malformed() -> None:
    with pytest.raises(MalformedFrame):
        queue_of_key("orders")
    with pytest.raises(MalformedFrame):
        queue_of_key('{"topic":"T","queueId":"x","brokerName":"b"}')


@settings(max_examples=rounds(400), deadline=None)
@given(st.text(alphabet='{}[]",:0123\\uabn e.-+tf\n', max_size=60))
def test_random_text_only_raises_malformed_frame(text: str) -> None:
    try:
        value = fastjson.loads(text.encode())
    except MalformedFrame:
        pass
    else:
        assert value is None or isinstance(value, (dict, list, str, int, float, bool))


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 53), 1 << 53) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.integers(0, 99), inner, max_size=4),
    max_leaves=12,
)


def with_text_keys(value: object) -> object:
    if isinstance(value, dict):
        return {str(key): with_text_keys(item) for key, item in value.items()}
    return [with_text_keys(item) for item in value] if isinstance(value, list) else value


@settings(max_examples=rounds(200), deadline=None)
@given(JSON_VALUES)
def test_what_is_written_is_read_again(value: object) -> None:
    assert fastjson.loads(fastjson.dumps(value)) == with_text_keys(value)
    assert fastjson.loads(fastjson.dumps_pretty(value)) == with_text_keys(value)
