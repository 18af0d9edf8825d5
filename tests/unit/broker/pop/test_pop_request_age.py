"""How long a pop was under way, whatever its client's clock says."""

from __future__ import annotations

from aerobee.broker.pop.request_age import RequestAge

LATE = 1_500
NOW = 1_000_000_000


class Peer:
    pass


def age(ages: RequestAge, peer: Peer, born: int, now: int) -> int:
    return ages.age_ms(peer, born, now, late_ms=LATE)


def test_a_birth_time_that_is_missing_means_now() -> None:
    ages, peer = RequestAge(), Peer()
    assert age(ages, peer, NOW, NOW) == 0
    assert age(ages, peer, 0, NOW + 5_000) == 0
    assert age(ages, peer, -1, NOW + 5_000) == 0


def test_a_clock_that_is_off_does_not_count() -> None:
    for off in (-600_000, 600_000):
        ages, peer = RequestAge(), Peer()
        for number in range(5):
            assert age(ages, peer, NOW + off + number * 100, NOW + number * 100) == 0


def test_a_request_that_took_longer_than_the_quickest_is_older_by_that() -> None:
    ages, peer = RequestAge(), Peer()
    age(ages, peer, NOW - 600_000, NOW)
    assert age(ages, peer, NOW - 600_000, NOW + 4_000) == 4_000
    assert age(ages, Peer(), NOW - 600_000, NOW + 4_000) == 0, "another peer has another clock"


def test_requests_that_piled_up_are_all_late() -> None:
    ages, peer = RequestAge(), Peer()
    age(ages, peer, NOW, NOW)
    born = [NOW + 1_000 * number for number in range(1, 50)]
    assert [age(ages, peer, each, NOW + 60_000) for each in born] == [NOW + 60_000 - each for each in born]


def test_a_clock_that_was_set_back_is_late_once() -> None:
    ages, peer = RequestAge(), Peer()
    age(ages, peer, NOW, NOW)
    assert age(ages, peer, NOW + 1_000 - 300_000, NOW + 1_000) == 300_000
    assert age(ages, peer, NOW + 1_200 - 300_000, NOW + 1_200) == 300_000, (
        "it may be one of several that waited"
    )
    assert age(ages, peer, NOW + 2_500 - 300_000, NOW + 2_500) == 0
    assert age(ages, peer, NOW + 2_600 - 300_000, NOW + 2_600) == 0


def test_a_clock_that_was_set_forward_is_known_at_once() -> None:
    ages, peer = RequestAge(), Peer()
    age(ages, peer, NOW - 300_000, NOW)
    assert age(ages, peer, NOW + 1_000, NOW + 1_000) == 0
    assert age(ages, peer, NOW + 1_000, NOW + 3_000) == 2_000


def test_a_peer_that_is_gone_is_forgotten() -> None:
    ages, peer = RequestAge(), Peer()
    age(ages, peer, NOW, NOW)
    del peer
    assert len(ages._clocks) == 0
