"""Requests, and batches of the fast path, that blocked the event loop for longer than HELD_LIMIT_S.

All other requests wait meanwhile. A throttled log line names the request's code and its peer; the counters are in the
broker's runtime information.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

from aerobee.errors import AerobeeError
from aerobee.log_throttle import LogThrottle
from aerobee.remoting.codes import RequestCode, request_name
from aerobee.remoting.frame import FrameDecoder
from aerobee.remoting.peer import Peer

T = TypeVar("T")
HELD_LIMIT_S = 0.05
SENDS = frozenset({RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE})
_LOG = logging.getLogger("aerobee.remoting")


class LoopWatch:
    """Counts of one server. Belongs to its event loop."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.monotonic = monotonic
        self.held_count = 0
        self.held_s = 0.0  # all together
        self.longest_s = 0.0
        self.longest = ""  # request and peer
        # Total time for which single requests other than sends blocked the event loop (overload.py).
        self.stalled_s = 0.0
        self._throttle = LogThrottle(_LOG, monotonic)

    def note(self, code: int, address: str, held_s: float) -> None:
        """Note that a request blocked the event loop for `held_s`; ignored below HELD_LIMIT_S."""
        if held_s < HELD_LIMIT_S:
            return
        if code not in SENDS:
            self.stalled_s += held_s
        self._held(request_name(code), address, held_s)

    def note_burst(self, data: bytes | bytearray, position: int, address: str, held_s: float) -> None:
        """Note that the fast path blocked the loop for `held_s` (at least HELD_LIMIT_S) with the frames of
        one read, from `position` of `data` on.
        """
        self._held(f"a burst that begins with {_first_request(data, position)}", address, held_s)

    def note_turn(self, what: str, address: str, held_s: float) -> None:
        """Note that the fast path blocked the loop for `held_s` with the frames of many connections; `what`
        and `address` name the largest batch.
        """
        self._held(what, address, held_s, kind="a turn")  # `what` contains a count, so it differs each time

    def _held(self, what: str, address: str, held_s: float, *, kind: str = "") -> None:
        self.held_count += 1
        self.held_s += held_s
        if held_s > self.longest_s:
            self.longest_s, self.longest = held_s, f"{what} of {address}"
        self._throttle.warn(
            kind or what, "%s of %s blocked the event loop for %.0f ms", what, address, held_s * 1000
        )

    def runtime_info(self) -> dict[str, str]:
        return {
            "loopHeldCount": str(self.held_count),
            "loopHeldMaxMs": str(round(self.longest_s * 1000)),
            "loopHeldLongest": self.longest,
        }


class Watched:
    """Awaits a handler's coroutine and records each of its steps that blocks the event loop."""

    def __init__(self, work: Coroutine[Any, Any, T], watch: LoopWatch, code: int, peer: Peer) -> None:
        self._work = work
        self._watch = watch
        self._code = code
        self._peer = peer

    def __await__(self) -> Generator[Any, Any, Any]:
        work, watch, monotonic = self._work, self._watch, self._watch.monotonic
        step: Callable[[], Any] = lambda: work.send(None)  # noqa: E731
        while True:
            started = monotonic()
            try:
                waits_for = step()
            except StopIteration as end:
                return end.value
            finally:
                watch.note(self._code, self._peer.address, monotonic() - started)
            try:
                answer = yield waits_for
            except BaseException as error:
                failure = error

                def throw(failure: BaseException = failure) -> Any:
                    return work.throw(failure)

                step = throw
            else:

                def send(answer: Any = answer) -> Any:
                    return work.send(answer)

                step = send


def _first_request(data: bytes | bytearray, position: int) -> str:
    """The name of the request that stands in `data` at `position`."""
    decoder = FrameDecoder()
    end = position + 4 + int.from_bytes(data[position : position + 4])
    try:
        decoder.feed(bytes(data[position:end]))
        frame = decoder.next_frame()
    except AerobeeError:
        return "an unreadable frame"
    return "half a frame" if frame is None else request_name(frame.code)
