"""Durations of requests by code and outcome, and the number of requests in progress. Core.

Source: RemotingMetricsManager (RocketMQ), which counts milliseconds under the same names. A row is an array
of native 64-bit numbers: the number of requests within each bound of ENDS_S and above, then the sum of their
durations in ns. `fast_rows` contains the rows of the fast path, which native code updates, too:

    row 2 * n        code FAST_CODES[n], answered with success
    row 2 * n + 1    the same, sent oneway

The Python backend's short bursts are counted in `short` first, one addition for a burst, and added to the rows when they are read.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from aerobee.remoting.codes import REQUEST_NAMES, RequestCode

ENDS_S = (0.001, 0.003, 0.005, 0.007, 0.01, 0.1, 1.0, 2.0, 3.0)
ROW_NUMBERS = len(ENDS_S) + 2
# Requests that the fast path answers; native/src/requests.rs has the same list in the same order.
FAST_CODES = (
    RequestCode.SEND_MESSAGE.value,
    RequestCode.SEND_MESSAGE_V2.value,
    RequestCode.SEND_BATCH_MESSAGE.value,
    RequestCode.PULL_MESSAGE.value,
    RequestCode.LITE_PULL_MESSAGE.value,
    RequestCode.END_TRANSACTION.value,
    RequestCode.CONSUMER_SEND_MSG_BACK.value,
)
_SUM_AT = ROW_NUMBERS - 1
FAST_ROW_COUNT = 2 * len(FAST_CODES)
# Request code (negative for oneway requests) -> index of its row.
FAST_ROWS = {sign * code: 2 * n + (sign < 0) for n, code in enumerate(FAST_CODES) for sign in (1, -1)}
SUCCESS, ONEWAY, FAILED = "success", "oneway", "process_request_failed"

OTHER_CODE = -1  # all unknown codes share one row: invented codes must not create rows

# Replies: pairs of request code and number.
Answers = Sequence[tuple[int, int]]


class Outcome(NamedTuple):
    """Key of a row: requests that are counted together."""

    request_code: int
    response_code: int
    waited: bool  # whether the request waited for a message (long poll)
    result: str


class ShortAnswers:
    """Replies within the first bound of ENDS_S that no row contains yet."""

    __slots__ = ("sum_s", "times")

    def __init__(self) -> None:
        self.times = 0
        self.sum_s = 0.0


class RequestLatency(NamedTuple):
    """A row as read: number of requests within each bound of ENDS_S, number of all, and sum of their durations."""

    within: tuple[int, ...]
    times: int
    sum_s: float


class RequestStats:
    """Statistics of one server. Belongs to the event loop."""

    def __init__(self) -> None:
        self.fast_rows = array("q", bytes(8 * ROW_NUMBERS * FAST_ROW_COUNT))
        # Codes of requests that the Python backend has answered, negative for oneway requests; its I/O layer
        # knows the duration. The list is never replaced, nor is `short`.
        self.fast_answered: list[int] = []
        self.short = {code: ShortAnswers() for code in FAST_ROWS}  # that I/O layer adds to it
        self._rows: dict[tuple[int, int, bool, str], array[int]] = {}
        self.running: Counter[int] = Counter()  # running handlers by request code

    def add(
        self,
        request_code: int,
        response_code: int,
        elapsed_s: float,
        times: int = 1,
        *,
        waited: bool = False,
        result: str = SUCCESS,
    ) -> None:
        """Add `times` requests with this duration each, from arrival to reply."""
        row = self._rows.get((request_code, response_code, waited, result))
        if row is None:
            known = request_code if request_code in REQUEST_NAMES else OTHER_CODE
            row = self._rows.setdefault(
                (known, response_code, waited, result), array("q", bytes(8 * ROW_NUMBERS))
            )
        row[bisect_left(ENDS_S, elapsed_s)] += times
        row[-1] += int(elapsed_s * 1e9) * times

    def add_answers(self, answers: Answers, response_code: int, elapsed_s: float) -> None:
        """As add(), for several codes."""
        for request_code, times in answers:
            self.add(request_code, response_code, elapsed_s, times)

    def took(self, elapsed_s: float) -> None:
        """Record this duration for the requests in `fast_answered`."""
        codes, rows = self.fast_answered, self.fast_rows
        bucket = bisect_left(ENDS_S, elapsed_s)
        while codes:
            code = codes[0]
            if (times := codes.count(code)) == len(codes):  # nearly always
                codes.clear()
            else:
                codes[:] = [each for each in codes if each != code]
            begin = FAST_ROWS[code] * ROW_NUMBERS
            rows[begin + bucket] += times
            rows[begin + _SUM_AT] += int(elapsed_s * 1e9) * times

    def count_short(self) -> None:
        """Add the counts of `short` to the rows."""
        for code, short in self.short.items():
            if short.times:
                begin = FAST_ROWS[code] * ROW_NUMBERS
                self.fast_rows[begin] += short.times
                self.fast_rows[begin + _SUM_AT] += int(short.sum_s * 1e9)
                short.times, short.sum_s = 0, 0.0

    def latencies(self) -> Iterator[tuple[Outcome, RequestLatency]]:
        """All rows; counts of the fast path and of the handlers are combined."""
        self.count_short()
        sums = {Outcome(*key): list(row) for key, row in list(self._rows.items())}
        for number in range(FAST_ROW_COUNT):
            row = self.fast_rows[number * ROW_NUMBERS : (number + 1) * ROW_NUMBERS]
            if any(row):
                outcome = Outcome(FAST_CODES[number // 2], 0, False, ONEWAY if number % 2 else SUCCESS)
                known = sums.get(outcome)
                sums[outcome] = (
                    list(row) if known is None else [a + b for a, b in zip(known, row, strict=True)]
                )
        for outcome, numbers in sums.items():
            yield (
                outcome,
                RequestLatency(tuple(_cumulative(numbers[:-2])), sum(numbers[:-1]), numbers[-1] / 1e9),
            )


def _cumulative(counts: Iterable[int]) -> Iterator[int]:
    seen = 0
    for count in counts:
        seen += count
        yield seen
