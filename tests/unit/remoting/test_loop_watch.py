"""Which work blocked the event loop: requests, and bursts by their first frame."""

from __future__ import annotations

import pytest

from aerobee.clock import ManualClock
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.frame import encode_frame
from aerobee.remoting.loop_watch import HELD_LIMIT_S, LoopWatch


def test_a_burst_is_named_by_its_first_request_and_its_peer(caplog: pytest.LogCaptureFixture) -> None:
    watch = LoopWatch(ManualClock().monotonic)
    frame = encode_frame(RemotingCommand(RequestCode.SEND_MESSAGE_V2, ext={"a": "g"}, body=b"x"))
    watch.note_burst(b"before" + frame + frame[:9], 6, "10.0.0.1:5", 0.0714)
    assert (
        "a burst that begins with SEND_MESSAGE_V2 (310) of 10.0.0.1:5 blocked the event loop for 71 ms"
        in caplog.text
    )
    assert watch.runtime_info() == {
        "loopHeldCount": "1",
        "loopHeldMaxMs": "71",
        "loopHeldLongest": "a burst that begins with SEND_MESSAGE_V2 (310) of 10.0.0.1:5",
    }
    watch.note_burst(frame[:9], 0, "p", 1.0)
    watch.note_burst(b"\0\0\0\4\xff\xff\xff\xff", 0, "p", 1.0)
    assert "half a frame" in caplog.text
    assert "an unreadable frame" in caplog.text


def test_only_requests_that_are_no_sends_count_as_stalls() -> None:
    watch = LoopWatch(ManualClock().monotonic)
    watch.note(RequestCode.SEND_MESSAGE_V2, "p", 1.0)
    watch.note(RequestCode.HEART_BEAT, "p", HELD_LIMIT_S / 2)
    assert watch.stalled_s == 0
    watch.note(RequestCode.HEART_BEAT, "p", 2.0)
    assert watch.stalled_s == 2.0
    assert watch.held_count == 2


def test_turns_with_other_numbers_are_one_kind_of_warning(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    watch = LoopWatch(clock.monotonic)
    for count in range(10, 20):
        watch.note_turn(f"a turn with {count} sends", "topic T", 0.1)
    clock.advance(10)
    watch.note_turn("a turn with 7 pulls", "10.0.0.1:5", 0.1)
    assert [record.getMessage() for record in caplog.records] == [
        "a turn with 10 sends of topic T blocked the event loop for 100 ms",
        "a turn with 7 pulls of 10.0.0.1:5 blocked the event loop for 100 ms (9 more like it before)",
    ]
    assert watch.held_count == 11
