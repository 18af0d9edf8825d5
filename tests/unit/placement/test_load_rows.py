"""From two looks to a model: rates, sizes, and what is not known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aerobee.errors import UsageError
from aerobee.placement.load_rows import LoadSample, model_of, rates_between, read_capacities

BROKER = LoadSample(at_ms=0, broker="a", end=1_000, disk_total=1e9, retention_ms=3_600_000)
QUEUE = LoadSample(at_ms=0, broker="a", topic="t", queue_id=0, end=10, groups=2, members="3,2")


def advanced(row: LoadSample, end: int, **more: object) -> LoadSample:
    return replace(row, at_ms=10_000, end=end, **more)  # type: ignore[arg-type]


def test_bytes_are_messages_times_the_size_that_the_broker_counted():
    second = [advanced(BROKER, 99_000), advanced(QUEUE, 110, size=200.0, bytes_out=5_000.0)]
    model = model_of(rates_between([BROKER, QUEUE], second))
    (load,) = model.topics[0].queues["a"]
    assert load == (2_000.0, 5_000.0, 2_000.0 * 3600)
    assert model.topics[0].group_sizes == (2, 3)
    assert model.brokers[0].capacity.disk == 1e9


def test_without_a_count_the_log_says_how_large_messages_are():
    other = replace(QUEUE, queue_id=1)
    rates = rates_between(
        [BROKER, QUEUE, other], [advanced(BROKER, 31_000), advanced(QUEUE, 110), advanced(other, 210)]
    )
    queues = model_of(rates).topics[0].queues["a"]
    assert [round(load.bytes_in) for load in queues] == [1_000, 2_000]
    assert [round(load.bytes_out) for load in queues] == [2_000, 4_000]


def test_a_queue_that_is_new_or_was_made_again_has_no_rate_and_stays_in_the_model():
    again, new = advanced(QUEUE, 2), advanced(replace(QUEUE, queue_id=1), 500)
    model = model_of(rates_between([BROKER, QUEUE], [advanced(BROKER, 2_000), again, new]))
    assert [load.bytes_in for load in model.topics[0].queues["a"]] == [0.0, 0.0]


def test_growth_counts_and_shrinking_does_not():
    second = [advanced(BROKER, 9_000), advanced(QUEUE, 110, size=10.0)]
    rates = rates_between([BROKER, QUEUE], second)
    assert model_of(rates, growth={"t": 2.0}).topics[0].total.bytes_in == 200.0
    assert model_of(rates, growth={"t": 0.5}).topics[0].total.bytes_in == 100.0


def test_topics_can_be_named_as_ordered_and_brokers_described():
    second = [advanced(BROKER, 9_000), advanced(QUEUE, 110, size=10.0)]
    known = read_capacities({"a": {"zone": "east", "bytes_in": 1e6}})
    model = model_of(rates_between([BROKER, QUEUE], second), ordered=["t"], capacities=known)
    assert model.topics[0].keeps_keys
    assert (model.brokers[0].zone, model.brokers[0].capacity.bytes_in) == ("east", 1e6)


@pytest.mark.parametrize(
    ("document", "says"),
    [([], "an object"), ({"a": 1}, "broker a is 1"), ({"a": {"ram": 1}}, "has ram")],
)
def test_wrong_descriptions_of_brokers_are_refused(document, says):
    with pytest.raises(UsageError, match=says):
        read_capacities(document)


def test_a_capacity_that_is_no_number_is_refused():
    with pytest.raises(UsageError, match="bytes_in of broker a is 'much'"):
        model_of(rates_between([], [BROKER]), capacities={"a": {"bytes_in": "much"}})
