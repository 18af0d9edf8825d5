"""Small runs of scale.py: that everything is counted, served and given back. What it costs is for the script to say."""

from __future__ import annotations

from tests.survival import scale

BYTES_PER_CONNECTION_MAX = 64 << 10


def run(what: str, count: int) -> dict[str, object]:
    return scale.run(what, "aerobee", count=count, queues=8, rounds=1, seconds=1.0)


def test_idle_connections_cost_little_and_are_given_back() -> None:
    figures = run("connections", 500)
    assert figures["bytes_per_connection_with_heartbeat"] < BYTES_PER_CONNECTION_MAX  # type: ignore[operator]


def test_each_parked_poll_is_released_by_its_own_message_and_all_by_one() -> None:
    figures = run("polls", 120)
    assert figures["send_to_released_ms"]["p50"] > 0  # type: ignore[index]


def test_topics_are_registered_and_there_after_a_restart() -> None:
    figures = run("topics", 150)
    assert figures["registration_bytes"] > 150 * len("topic-00000")  # type: ignore[operator]


def test_the_head_of_a_queue_is_read_while_its_cold_beginning_is() -> None:
    try:
        figures = run("backlog", 20_000)
    except scale.HeadDelayed as delayed:  # that is a judgement on a quiet machine
        figures = delayed.figures
    assert figures["backlog_read_messages_per_s"] > 0  # type: ignore[operator]
