from aerobee.store.log.flush import Watermark


def test_callbacks_run_in_the_order_of_their_offsets() -> None:
    watermark, seen = Watermark(), []
    for offset in (10, 30, 20, 20):
        watermark.when(offset, lambda ok, offset=offset: seen.append((offset, ok)))
    watermark.advance(20)
    assert seen == [(10, True), (20, True), (20, True)]
    watermark.advance(40)
    assert seen[-1] == (30, True)
    assert watermark.waiting == 0


def test_an_offset_that_was_reached_is_answered_at_once() -> None:
    watermark, seen = Watermark(5), []
    watermark.when(5, seen.append)
    assert seen == [True]


def test_the_value_never_goes_back() -> None:
    watermark = Watermark(5)
    watermark.advance(3)
    assert watermark.value == 5


def test_after_a_failure_no_waiter_gets_success() -> None:
    watermark, seen = Watermark(5), []
    watermark.when(9, seen.append)
    watermark.fail()
    watermark.when(10, seen.append)
    watermark.advance(20)
    assert seen == [False, False]
    assert watermark.value == 5


def test_a_callback_may_wait_again() -> None:
    watermark, seen = Watermark(), []
    watermark.when(1, lambda ok: watermark.when(2, seen.append))
    watermark.advance(1)
    assert seen == []
    watermark.advance(2)
    assert seen == [True]
