from aerobee.store.log.flush import Watermark


def test_callbacks_run_in_the_order_of_their_offsets() -> None:
    mark, seen = Watermark(), []
    for offset in (10, 30, 20, 20):
        mark.when(offset, lambda ok, offset=offset: seen.append((offset, ok)))
    mark.advance(20)
    assert seen == [(10, True), (20, True), (20, True)]
    mark.advance(40)
    assert seen[-1] == (30, True)
    assert mark.waiting == 0


def test_an_offset_that_was_reached_is_answered_at_once() -> None:
    mark, seen = Watermark(5), []
    mark.when(5, seen.append)
    assert seen == [True]


def test_the_value_never_goes_back() -> None:
    mark = Watermark(5)
    mark.advance(3)
    assert mark.value == 5


def test_after_a_failure_nobody_is_told_yes() -> None:
    mark, seen = Watermark(5), []
    mark.when(9, seen.append)
    mark.fail()
    mark.when(10, seen.append)
    mark.advance(20)
    assert seen == [False, False]
    assert mark.value == 5


def test_a_callback_may_wait_again() -> None:
    mark, seen = Watermark(), []
    mark.when(1, lambda ok: mark.when(2, seen.append))
    mark.advance(1)
    assert seen == []
    mark.advance(2)
    assert seen == [True]
