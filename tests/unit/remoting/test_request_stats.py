"""Requests counted by code, outcome and time."""

from __future__ import annotations

from aerobee.broker.metrics.metrics import STEPPED_S
from aerobee.remoting.request_stats import ENDS_S, ONEWAY, OTHER_CODE, Outcome, RequestStats


def test_each_time_is_within_the_ends_that_it_does_not_exceed() -> None:
    stats = RequestStats()
    times_s = [0.0, 0.001, 0.0011, 0.004, 0.5, 2.0, 60.0]
    for elapsed_s in times_s:
        stats.add(34, 0, elapsed_s)
    ((outcome, latency),) = stats.latencies()
    assert outcome == Outcome(34, 0, False, "success")
    assert latency.within == tuple(sum(each <= end_s for each in times_s) for end_s in ENDS_S)
    assert latency.times == len(times_s)
    assert abs(latency.sum_s - sum(times_s)) < 1e-6


def test_short_replies_are_counted_on_read() -> None:
    stats = RequestStats()
    for _ in range(2):
        for code in (310, -310):
            stats.short[code].times += 3
            stats.short[code].sum_s += 3 * 0.0001
        found = dict(stats.latencies())
    assert dict(stats.latencies()) == found
    for result in ("success", ONEWAY):
        latency = found[Outcome(310, 0, False, result)]
        assert (latency.within[0], latency.times) == (6, 6)
        assert abs(latency.sum_s - 6 * 0.0001) < 1e-8
    assert ENDS_S[0] > STEPPED_S, "what the fast path adds to `short` is within the first"


def test_what_the_fast_path_and_the_handlers_answer_is_one_row() -> None:
    stats = RequestStats()
    stats.fast_answered += [310, 310, -310, 310, -310, 310, 310]
    stats.took(0.002)
    assert not stats.fast_answered
    stats.took(9.0)  # nothing is left for it
    stats.add(310, 0, 0.006)
    stats.add(310, 0, 0.5, waited=True)
    found = dict(stats.latencies())
    assert found[Outcome(310, 0, False, "success")].times == 6
    assert found[Outcome(310, 0, False, "success")].within[:4] == (0, 5, 5, 6)
    assert found[Outcome(310, 0, False, ONEWAY)].times == 2
    assert found[Outcome(310, 0, True, "success")].times == 1


def test_codes_that_are_made_up_are_one_row() -> None:
    stats = RequestStats()
    for code in (-5, 0, 99_999, 2**31 - 1, 99_999):
        stats.add(code, 3, 0.001)
    ((outcome, latency),) = stats.latencies()
    assert outcome == Outcome(OTHER_CODE, 3, False, "success")
    assert latency.times == 5
