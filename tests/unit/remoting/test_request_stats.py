"""Requests counted by code, outcome and time."""

from __future__ import annotations

from aerobee.remoting.codes import RequestCode
from aerobee.remoting.request_stats import ENDS_S, FAST_CODES, ONEWAY, OTHER_CODE, Outcome, RequestStats


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


def test_what_the_fast_path_and_the_handlers_answer_is_one_row() -> None:
    stats = RequestStats()
    send = FAST_CODES.index(RequestCode.SEND_MESSAGE_V2)
    stats.fast_answered.update({2 * send: 5, 2 * send + 1: 2})
    stats.took(0.002)
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
