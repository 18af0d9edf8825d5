"""Plans as documents: whole both ways, and nothing in them is believed."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerobee.errors import UsageError
from aerobee.placement.apply_config import ApplyConfig
from aerobee.placement.journal import Journal
from aerobee.placement.model import Broker, Load, Model, Topic
from aerobee.placement.plan import make_plan, parse_plan
from tests.rounds import rounds
from tests.unit.placement.worlds import models


def skewed() -> Model:
    load = (Load(10.0, 20.0, 30.0),) * 8
    return Model(
        brokers=(Broker(name="a"), Broker(name="b")),
        topics=(
            Topic(name="free", queues={"a": load}),
            Topic(name="fifo", queues={"a": load}, is_ordered=True),
            Topic(name="static", queues={"a": load}, pinned="a static topic"),
        ),
    )


@settings(max_examples=rounds(50), deadline=None)
@given(model=models(), move_ordered=st.booleans())
def test_a_plan_is_the_same_after_it_was_written(model, move_ordered):
    plan = make_plan(model, 1_700_000_000_000, move_ordered=move_ordered)
    assert parse_plan(plan.encode()) == plan


def test_a_plan_says_what_it_changes_and_what_it_leaves_alone():
    plan = make_plan(skewed(), 1)
    (change,) = plan.changes
    assert change.topic == "free"
    assert plan.after.imbalance["bytes_in"] < plan.before.imbalance["bytes_in"]
    text = "\n".join(plan.warnings)
    assert (
        "fifo: order is promised in it, it is left alone; one queue more would move 89% of its keys" in text
    )
    assert "static is left alone: a static topic" in text


def test_a_plan_that_moves_an_ordered_topic_says_how_many_keys_move():
    plan = make_plan(skewed(), 1, move_ordered=True)
    fifo = next(change for change in plan.changes if change.topic == "fifo")
    assert fifo.keeps_keys
    assert f"{fifo.moved_keys:.0%} of its keys get another queue" in "\n".join(plan.warnings)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("version",), 2, "no plan of version 1"),
        (("version",), True, "no plan of version 1"),
        (("changes",), 7, "damaged"),
        (("changes", 0, "topic"), "no/topic", "no/topic"),
        (("changes", 0, "topic"), 7, "7 is no text"),
        (("changes", 0, "topic"), None, "None is no text"),
        (("warnings",), "static", "'static' is no list"),
        (("warnings",), ["static", 7], "7 is no text"),
        (("changes", 0, "after"), {}, "without any queue"),
        (("changes", 0, "after"), {"a": 0}, "0 queues"),
        (("changes", 0, "after"), {"a": 70000}, "70000 queues"),
        (("changes", 0, "after"), {"a": True}, "True"),
        (("changes", 0, "before"), {"a": "4"}, "'4'"),
        (("after", "imbalance"), None, "damaged"),
        (("changes", 0, "keeps_keys"), 1, "neither true nor false"),
        (("changes", 0, "moved_keys"), True, "True is no number"),
        (("changes", 0, "moved_keys"), 1.01, "1.01 is no share"),
        (("changes", 0, "moved_keys"), -0.01, "-0.01 is no share"),
        (("changes", 0, "topic"), "%RETRY%billing", "a group's retries"),
        (("changes", 0, "topic"), "%DLQ%billing", "dead letters"),
        (("changes", 0, "after"), {"a:1": 4}, "no broker can have this name"),
        (("changes", 0, "after"), {"\x1b[2J": 4}, "no broker can have this name"),
        (("after", "imbalance"), {"bytes_in": "1"}, "'1' is no number"),
        (("made_at_ms",), "yesterday", "yesterday"),
    ],
)
def test_a_plan_that_was_tampered_with_is_refused(path, value, says):
    document = orjson.loads(make_plan(skewed(), 1).encode())
    node = document
    for step in path[:-1]:
        node = node[step]
    node[path[-1]] = value
    with pytest.raises(UsageError, match=says):
        parse_plan(orjson.dumps(document))


def test_text_that_is_no_json_is_refused():
    with pytest.raises(UsageError, match="not JSON"):
        parse_plan(b"{")


def test_a_journal_survives_a_line_that_was_cut_off(tmp_path):
    journal = Journal(tmp_path / "journal")
    assert journal.events() == []
    journal.note("begin", at_ms=1, ordered={}, plan="x")
    journal.note("step", step="x")
    with journal.path.open("ab") as file:
        file.write(b'{"event":"ste')
    assert [event["event"] for event in journal.events()] == ["begin", "step"]
    journal.note("end")
    assert [event["event"] for event in journal.events()] == ["begin", "step", "end"]
    journal.path.write_bytes(b'nonsense\n{"event":"end"}\n')
    with pytest.raises(UsageError, match="line 1"):
        journal.events()


def test_a_journal_of_another_plan_is_refused(tmp_path):
    journal = Journal(tmp_path / "journal")
    journal.note("begin", ordered={}, plan="one")
    assert len(journal.events_of("one")) == 1
    with pytest.raises(UsageError, match="journal of another plan"):
        journal.events_of("two")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b'{"event":"begin","plan":"x"}', "ordered of 'begin'"),
        (b'{"event":"begin","plan":"x","ordered":[1]}', "ordered of 'begin'"),
        (b'{"event":"begin","ordered":{}}', "plan of 'begin'"),
        (b'{"event":"begin","plan":"x","ordered":{"t":true}}', "no order configuration"),
        (b'{"event":"removing","topic":"t","broker":"b","read":2,"left":0,"ends":7}', "ends of 'removing'"),
        (b'{"event":"removing","topic":"t","broker":"b","read":2,"left":true,"ends":{}}', "left of 'removing'"),
        (b'{"event":"removing","topic":"t","broker":"b","read":2,"left":0,"ends":{"x":1}}', "'x': 1 is no end"),
        (b'{"event":"removing","topic":"t","broker":"b","read":2,"left":0,"ends":{"0":null}}', "'0': None is no end"),
        (b"[]", "no event"),
        (b"\xff\xfe", "no journal of a plan"),
    ],
)  # fmt: skip
def test_a_damaged_journal_is_refused_and_the_line_is_named(tmp_path, line, says):
    path = tmp_path / "journal"
    path.write_bytes(b'{"event":"begin","ordered":{},"plan":"x"}\n' + line + b"\n")
    with pytest.raises(UsageError, match=f"line 2: .*{says}|line 2.*{says}"):
        Journal(path).events()


@pytest.mark.parametrize("name", ["grace_s", "plan_age_max_h", "changes_per_minute", "drain_s", "routes_s"])
def test_what_is_no_number_is_no_setting(name):
    with pytest.raises(UsageError):
        ApplyConfig(**{name: float("nan")})
