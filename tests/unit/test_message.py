import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee import message as m
from aerobee.errors import MalformedRecord, UsageError

# remoting.md test vector: body `hi`, topic T, queue 2, queue offset 5, physical offset 1000
VECTOR = bytes.fromhex(
    "00000071daa320a758932aac0000000200000000000000000000000500000000000003e8000000000000018bcfe568000a000001"
    "0000c3500000018bcfe568010a00000200002a9f0000000000000000000000000000000268690154"
    "00134b455953016b3102554e49515f4b4559015502"
)


def naive_java_hash(text: str) -> int:
    value = 0
    raw = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(raw), 2):
        value = (31 * value + int.from_bytes(raw[at : at + 2], "big")) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def encode(**changes: object) -> bytes:
    values: dict[str, object] = {
        "topic": b"T",
        "queue_id": 2,
        "queue_offset": 5,
        "physical_offset": 1000,
        "body": b"hi",
        "properties": b"KEYS\x01k1\x02UNIQ_KEY\x01U\x02",
        "born_timestamp": 1700000000000,
        "born_host": m.pack_host("10.0.0.1", 50000),
        "store_timestamp": 1700000000001,
        "store_host": m.pack_host("10.0.0.2", 10911),
    }
    return m.encode_record(**(values | changes))  # type: ignore[arg-type]


def test_record_encodes_to_the_bytes_of_rocketmq():
    assert encode() == VECTOR


def test_record_decodes_to_its_fields():
    record = m.decode_record(VECTOR)
    assert (record.topic, record.queue_id, record.queue_offset, record.physical_offset) == ("T", 2, 5, 1000)
    assert (record.body, record.keys, record.unique_id) == (b"hi", ("k1",), "U")
    assert record.offset_message_id == "0A00000200002A9F00000000000003E8"
    assert m.parse_offset_message_id(record.offset_message_id) == (("10.0.0.2", 10911), 1000)


def test_ipv6_hosts_and_long_topics_round_trip():
    data = encode(topic=b"x" * 200, born_host=m.pack_host("2001:db8::1", 1), store_host=m.pack_host("::1", 2))
    record = m.decode_record(data)
    assert record.topic == "x" * 200
    assert (record.born_host, record.store_host) == (("2001:db8::1", 1), ("::1", 2))
    assert record.sys_flag == m.BORN_HOST_V6 | m.STORE_HOST_V6


def test_several_records_decode_one_after_another():
    assert [r.body for r in m.decode_records(VECTOR + encode(body=b"second"))] == [b"hi", b"second"]


@pytest.mark.parametrize("cut", [0, 3, 50, len(VECTOR) - 1])
def test_truncated_record_is_refused(cut):
    with pytest.raises(MalformedRecord):
        m.decode_record(VECTOR[:cut])


def test_wrong_crc_is_refused_unless_not_asked_for():
    at = VECTOR.index(b"hi")
    bad = VECTOR[:at] + b"ho" + VECTOR[at + 2 :]
    with pytest.raises(MalformedRecord, match="CRC"):
        m.decode_record(bad)
    assert m.decode_record(bad, check_crc=False).body == b"ho"


def test_the_crc_of_an_empty_body_is_not_looked_at_as_in_rocketmq():
    data = bytearray(encode(body=b""))
    data[8] ^= 1
    assert m.decode_record(bytes(data)).body == b""


@given(st.integers(0, len(VECTOR) - 1), st.integers(0, 255))
def test_mutated_record_decodes_or_raises_malformed_record(at, value):
    data = bytearray(VECTOR)
    data[at] = value
    try:
        m.decode_record(bytes(data))
    except MalformedRecord:
        return
    assert True


@given(st.text())
def test_java_hash_agrees_with_its_definition(text):
    assert m.java_hash(text) == naive_java_hash(text)


def test_java_hash_vectors():
    assert [m.java_hash(t) for t in ("TagA", "*", "order||pay", "")] == [2598919, 42, 783436442, 0]


@given(
    st.dictionaries(
        st.text("abcXYZ_$", min_size=1),
        st.text(st.characters(min_codepoint=32, exclude_categories=["Cs"]), min_size=1),
    )
)
def test_properties_round_trip(properties):
    assert m.decode_properties(m.encode_properties(properties)) == properties


def test_properties_without_closing_separator_and_empty_values_are_read():
    assert m.decode_properties("a\x011\x02b\x01\x02c\x012") == {"a": "1", "c": "2"}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"topic": "a b", "body": b""}, "only letters"),
        ({"topic": "", "body": b""}, "empty"),
        ({"topic": "t" * 128, "body": b""}, "at most 127"),
        ({"topic": "t", "body": "text"}, "encode it first"),
        ({"topic": "t", "body": b"", "keys": "k"}, "tuple"),
        ({"topic": "t", "body": b"", "keys": ("a b",)}, "blank"),
        ({"topic": "t", "body": b"", "properties": {"a": ""}}, "non-empty"),
        ({"topic": "t", "body": b"", "tag": "x\x02"}, "without"),
    ],
)
def test_message_that_cannot_be_stored_is_refused_with_the_reason(arguments, reason):
    with pytest.raises(UsageError, match=reason):
        m.Message(**arguments)


@pytest.mark.parametrize("text", ["", "xyz", "00" * 10, "0A00000200000000" + "00" * 8])
def test_text_that_is_no_offset_message_id_is_refused(text):
    with pytest.raises(UsageError):
        m.parse_offset_message_id(text)


@pytest.mark.parametrize("length", [1_023, 1_024, 1_025, 4_300, 4_301, 30_000])
def test_the_hash_of_a_long_text_is_javas(length: int) -> None:
    text = "".join(chr(33 + n * 7 % 90) for n in range(length))
    value = 0
    for char in text:
        value = (31 * value + ord(char)) & 0xFFFFFFFF
    assert m.java_hash(text) & 0xFFFFFFFF == value
    assert -(1 << 31) <= m.java_hash(text) < 1 << 31
