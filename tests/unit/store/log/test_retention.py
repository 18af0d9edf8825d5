from aerobee.store.files.config import StoreConfig
from aerobee.store.log.retention import Retention

HOUR_MS = 3_600_000
NOON_MS = 1_000_000 * HOUR_MS
FOUR_MS = NOON_MS - 8 * HOUR_MS
OLD, YOUNG = 73 * HOUR_MS, HOUR_MS


def decide(
    retention: Retention, ages: list[int], *, now: int = NOON_MS, used: float = 0.1, manual: bool = False
):
    return retention.decide(
        now_ms=now,
        local_hour=4 if now == FOUR_MS else 12,
        file_times_ms=[now - age for age in ages],
        used_ratio=used,
        manual=manual,
    )


def test_expired_files_go_only_in_the_hour_of_delete_when() -> None:
    retention = Retention(StoreConfig())
    assert decide(retention, [OLD, OLD, YOUNG]).delete_count == 0
    assert decide(retention, [OLD, OLD, YOUNG], now=FOUR_MS).delete_count == 2


def test_a_file_behind_a_young_one_stays() -> None:
    assert decide(Retention(StoreConfig()), [YOUNG, OLD], now=FOUR_MS).delete_count == 0


def test_above_the_max_used_ratio_expired_files_go_at_any_hour() -> None:
    assert decide(Retention(StoreConfig()), [OLD, YOUNG], used=0.76).delete_count == 1


def test_above_the_forcible_ratio_age_does_not_matter() -> None:
    assert decide(Retention(StoreConfig()), [YOUNG, YOUNG], used=0.86).delete_count == 2
    gentle = Retention(StoreConfig(clean_file_forcibly_enable=False))
    assert decide(gentle, [YOUNG], used=0.86).delete_count == 0


def test_one_run_takes_a_bounded_number_of_files() -> None:
    assert decide(Retention(StoreConfig(delete_file_batch_max=3)), [OLD] * 9, manual=True).delete_count == 3


def test_full_begins_above_the_warning_level_and_ends_at_the_forcible_one() -> None:
    retention = Retention(StoreConfig())
    assert [decide(retention, [], used=used).is_full for used in (0.89, 0.91, 0.88, 0.86, 0.85, 0.89)] == [
        False, True, True, True, False, False,
    ]  # fmt: skip


def test_files_dated_ahead_are_as_old_as_the_next() -> None:
    retention = Retention(StoreConfig(file_reserved_time=1, delete_when="4"))
    now_ms, hour_ms = 1_700_000_000_000, 3_600_000
    times = [now_ms + 24 * 365 * 24 * hour_ms, now_ms - 3 * hour_ms, now_ms - 2 * hour_ms, now_ms]
    decision = retention.decide(
        now_ms=now_ms, local_hour=4, file_times_ms=times, used_ratio=0.1, manual=False
    )
    assert decision.delete_count == 3
