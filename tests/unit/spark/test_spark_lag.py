"""What the lag job says of a history of samples: states, late and repeated samples, brokers without an answer."""

from __future__ import annotations

from typing import Any

import pytest

from aerobee.spark.lag_rows import LagSample, QueueLag, as_row, evaluate, kind_of

S = 1000


def sample(at_s: float, committed: int | None, end: int, **more: Any) -> dict[str, Any]:
    fields = {"topic": "orders", "broker": "broker-a", "queue_id": 0, "is_attended": True, **more}
    return as_row(
        LagSample(
            at_ms=round(at_s * S), cluster="c", group="g", committed=committed, max_offset=end, **fields
        )
    )


def judged(*samples: dict[str, Any]) -> QueueLag:
    found = evaluate(samples, window_ms=120 * S)
    assert found is not None
    return found


def steps(*points: tuple[int | None, int], **more: Any) -> list[dict[str, Any]]:
    return [sample(30 * number, committed, end, **more) for number, (committed, end) in enumerate(points)]


@pytest.mark.parametrize(
    ("points", "more", "state"),
    [
        ([(10, 10)] * 5, {}, "OK"),
        ([(10, 90), (40, 95), (70, 99), (80, 100), (90, 105)], {}, "OK"),
        ([(10, 20), (20, 40), (30, 60), (40, 80), (50, 100)], {}, "WARN"),
        ([(10, 20), (10, 40), (10, 60), (10, 80), (10, 100)], {}, "STALL"),
        ([(10, 20), (10, 40), (10, 60), (10, 80), (10, 100)], {"is_attended": False}, "STOP"),
        ([(10, 20), (20, 40), (15, 60), (15, 80), (16, 100)], {}, "REWIND"),
        ([(10, 20)] * 5, {"subscriptions_differ": True}, "MISMATCH"),
        ([(None, 20)] * 5, {}, "UNKNOWN"),
    ],
)
def test_states(points: list[tuple[int | None, int]], more: dict[str, Any], state: str):
    assert judged(*steps(*points, **more)).state == state


def test_figures_are_those_of_the_samples():
    rows = steps(
        (0, 100), (60, 130), (120, 160), (180, 190), (240, 220), oldest_ms=90 * S, retention_ms=3_600 * S
    )
    rows[-1] |= {"committed": 200, "filtered_lag": 7}
    said = judged(*rows)
    assert (said.lag, said.filtered_lag, said.lag_ms) == (20, 7, 30 * S)
    assert (said.consume_rate, said.produce_rate) == (200 / 120, 120 / 120)
    assert said.drain_s == pytest.approx(20 / (80 / 120))
    assert said.retention_s == 3_600 - 30


def test_samples_that_come_late_or_twice_change_nothing():
    rows = steps((10, 20), (20, 40), (30, 60), (40, 80), (50, 100))
    assert judged(*reversed(rows), rows[2], rows[0]) == judged(*rows)


def test_a_broker_without_an_answer_is_unknown_and_never_zero():
    gone = sample(150, None, 0, error="broker broker-a is not registered at any nameserver now")
    said = judged(*steps((10, 20), (20, 40)), gone)
    assert (said.state, said.reason) == ("UNKNOWN", "broker broker-a is not registered at any nameserver now")
    assert said.cluster == "c"
    assert (said.lag, said.lag_ms, said.consume_rate, said.drain_s, said.retention_s) == (None,) * 5
    back = judged(*steps((10, 20), (20, 40)), gone, sample(180, 40, 40))
    assert (back.state, back.lag) == ("OK", 0)


def test_a_store_time_ahead_of_the_sampler_is_now():
    assert judged(sample(10, 1, 5, oldest_ms=20 * S)).lag_ms == 0


def test_retry_and_dead_letters_belong_to_their_group():
    assert [kind_of(name) for name in ("orders", "%RETRY%g", "%DLQ%g")] == ["topic", "retry", "dead"]
    dead = judged(sample(10, None, 5, topic="%DLQ%g", min_offset=2))
    assert (dead.kind, dead.lag, dead.state, dead.reason) == ("dead", 3, "WARN", "3 dead letters")


def test_nothing_is_said_of_nothing():
    assert evaluate([]) is None
