import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerobee.broker.filter.program import program_of
from aerobee.broker.filter.record_test import compile_test
from aerobee.broker.filter.sql92 import DEPTH_MAX, compile_filter
from aerobee.message import decode_properties, encode_record, pack_host
from tests.fuzz import sql92_against_sqlite as fuzz
from tests.rounds import rounds
from tests.unit.broker.filter.rows import ROW

try:
    from aerobee_native import RecordFilter
except ImportError:  # no native backend is built
    RecordFilter = None

HOST = pack_host("10.0.0.1", 1)
VALUES = (
    "",
    "x",
    "red",
    "3",
    "-3",
    "+3",
    "2.5",
    "2.5d",
    " 3",
    "1_0",
    "99999999999999999999",
    "TRUE",
    "false",
    "é",
    "x\x01y",
)


def record_of(
    text: bytes, *, body: bytes = b"\x02a\x019\x02", topic: bytes = b"T", host: bytes = HOST
) -> bytes:
    return encode_record(
        topic=topic, queue_id=0, queue_offset=0, physical_offset=0, body=body, properties=text, born_host=host, store_host=HOST
    )  # fmt: skip


def text_of(row: dict[str, str]) -> bytes:
    return "".join(f"{name}\x01{value}\x02" for name, value in row.items()).encode(errors="surrogateescape")


def extra_leaf(rng: random.Random) -> str:
    name, other = rng.choice("ijkst"), rng.choice("ijkst")
    literal = rng.choice(("2.5", "-1", "TRUE", "false", "NULL", "'x'", "'re'", "''", "0.0", "'3'"))
    return rng.choice(
        (
            f"{name} = {literal}",
            f"{literal} <> {name}",
            f"{name} = {other}",
            f"{name} <> {other}",
            f"{name} < {other}",
            f"2.5 >= {name}",
            f"{name} {rng.choice(('', 'NOT '))}CONTAINS 'x'",
            f"{name} {rng.choice(('', 'NOT '))}STARTSWITH {literal}",
            f"{name} {rng.choice(('', 'NOT '))}ENDSWITH {other}",
            f"({name} > 1) = TRUE",
            f"(({name} = 'x') IS NULL)",
            f"{name} NOT BETWEEN 1.5 AND 4",
            name,
            "TRUE",
            "NULL",
        )
    )


@pytest.mark.parametrize("seed", range(4))
def test_the_function_over_bytes_agrees_with_the_tree(seed, monkeypatch):
    leaf = fuzz.leaf
    monkeypatch.setattr(fuzz, "leaf", lambda rng: extra_leaf(rng) if rng.random() < 0.5 else leaf(rng))
    rng = random.Random(seed)
    for _ in range(rounds(400)):
        text = fuzz.expression(rng)
        compiled = compile_filter(text)
        test = compile_test(compiled)
        for _ in range(8):
            row = {name: rng.choice(VALUES) for name in fuzz.NUMBERS + fuzz.TEXTS if rng.random() < 0.7}
            raw = text_of(row)
            expected = compiled.matches(decode_properties(raw.decode(errors="surrogateescape")))
            for record in (
                record_of(raw),
                record_of(raw, topic=b"T" * 200),
                record_of(raw, host=pack_host("::1", 1)),
            ):
                assert test.record(record) is expected, (text, row)


@pytest.mark.skipif(RecordFilter is None, reason="no native backend is built")
@pytest.mark.parametrize("seed", range(4))
def test_the_native_filter_agrees_with_the_function(seed, monkeypatch):
    leaf = fuzz.leaf
    monkeypatch.setattr(fuzz, "leaf", lambda rng: extra_leaf(rng) if rng.random() < 0.5 else leaf(rng))
    rng = random.Random(seed)
    native = looked_at = 0
    for _ in range(rounds(600)):
        text = fuzz.expression(rng)
        compiled = compile_filter(text)
        test, program = compile_test(compiled), program_of(compiled)
        if program is None:
            continue
        native += 1
        accepts = RecordFilter(program).accepts
        for _ in range(8):
            row = {name: rng.choice(VALUES) for name in fuzz.NUMBERS + fuzz.TEXTS if rng.random() < 0.7}
            raw = text_of(row)
            record = record_of(raw, topic=b"T" * rng.choice((1, 127)))
            found = accepts(record)
            looked_at += found is not None
            assert found in (None, test.record(record)), (text, row)
            for other in (record_of(raw, host=pack_host("::1", 1)), record_of(raw, topic=b"T" * 200)):
                assert accepts(other) is found
            cut = record[: rng.randrange(len(record))]
            assert accepts(cut) in (None, True, False)
    assert native > rounds(600) // 6
    assert looked_at > 4 * native


@pytest.mark.skipif(RecordFilter is None, reason="no native backend is built")
@pytest.mark.parametrize("bad", [(), ([], ()), ([], ("lone", 0)), ([], ("and", [1])), ([b"a"], ("order", "=", True, 0, 0)),
                                 ([b"a"], ("same_integer", 0, 1 << 64, False)), ([b"a"], ("what", 0))])  # fmt: skip
def test_a_program_that_is_none_is_refused(bad):
    with pytest.raises((TypeError, ValueError, IndexError, OverflowError)):
        RecordFilter(bad)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"a\x011\x02", True),
        (b"a\x011", True),  # C++ leaves the last separator out
        (b"b\x011\x02a\x011\x02", True),
        (b"a\x012\x02a\x011\x02", True),  # the last one counts
        (b"a\x011\x02a\x012\x02", False),
        (b"a\x011\x02a\x01\x02", True),  # an empty value is none
        (b"aa\x011\x02", False),
        (b"b\x01a\x011\x02", False),  # a value may hold \x01
        (b"", False),
        (b"\x02\x02a\x011\x02\x02", True),
        (b"a\x01\x02" * 5000, False),
    ],
)
def test_properties_are_found_as_java_reads_them(text, expected):
    assert compile_test(compile_filter("a = 1")).record(record_of(text)) is expected
    if RecordFilter is not None:
        assert RecordFilter(program_of(compile_filter("a = 1"))).accepts(record_of(text)) is expected
    assert compile_filter("a = 1").matches(decode_properties(text.decode())) is expected


@settings(max_examples=rounds(300), deadline=None)
@given(st.text(alphabet="ab\x01\x021é", max_size=30))
def test_any_properties_text_gives_what_decoding_gives(text):
    compiled = compile_filter("a = 1 OR b = '1' OR a IS NULL AND b IS NOT NULL")
    expected = compiled.matches(decode_properties(text))
    assert compile_test(compiled).record(record_of(text.encode())) is expected


def test_the_deepest_expression_compiles():
    for text in (
        "NOT " * (DEPTH_MAX - 1) + "(a = 3)",
        "(" * DEPTH_MAX + "a = 3" + ")" * DEPTH_MAX,
        " OR ".join(["a = 3"] * 500),
    ):
        compiled = compile_filter(text)
        assert compile_test(compiled).record(record_of(text_of(ROW))) is compiled.matches(ROW)


def test_names_and_texts_of_the_expression_never_become_source():
    compiled = compile_filter("__import__ = 'os\"+evil()' AND x = '\\'")
    row = {"__import__": 'os"+evil()', "x": "\\"}
    assert compile_test(compiled).record(record_of(text_of(row))) is True
