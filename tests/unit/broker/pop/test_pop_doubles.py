"""A message in two check points, after a crash between a change of its invisible time and the old check point's acknowledgement."""

from aerobee.broker.pop.check_point import CheckPoint
from aerobee.broker.pop.in_flight import InFlightTable


def point_of(pop_time: int) -> CheckPoint:
    return CheckPoint(
        topic="orders",
        group="g",
        queue_id=0,
        start_offset=0,
        offsets=(0,),
        pop_time=pop_time,
        invisible_ms=60_000,
        broker_name="broker-a",
    )


def settled(first: CheckPoint, second: CheckPoint, *, written_at: tuple[int, int]) -> tuple[bool, bool]:
    """Whether each of two check points, at these physical offsets, is acknowledged once the table is filled."""
    table = InFlightTable()
    for point in (second, first):
        table.add(point, "")
    for _ in table.settling_doubles(dict(zip((first.key, second.key), written_at, strict=True))):
        pass
    return first.is_acked, second.is_acked


def test_the_older_of_two_check_points_is_settled() -> None:
    assert settled(point_of(1_000), point_of(2_000), written_at=(100, 200)) == (True, False)


def test_a_change_behind_a_clock_that_was_set_back_is_kept() -> None:
    before, changed = point_of(90_000), point_of(50_000)
    before.ack(0)
    assert settled(before, changed, written_at=(100, 200)) == (True, False)


def test_nothing_is_settled_where_times_and_log_disagree() -> None:
    assert settled(point_of(90_000), point_of(50_000), written_at=(100, 200)) == (False, False)
