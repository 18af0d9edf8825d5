"""Which committed offsets may go back in a simulated run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets
from aerobee.clock import SystemClock
from aerobee.simulation.broken import Broken
from aerobee.simulation.names import GROUP, TOPIC
from aerobee.simulation.node import Settings
from aerobee.simulation.simulated_loop import SimulatedClock
from aerobee.simulation.watch import Watch


def watched(*, takes_writes: bool = False) -> tuple[Watch, ConsumerOffsets]:
    """A watch that has seen offset 25 at its only broker, and the broker's offsets."""
    offsets = ConsumerOffsets(clock=SystemClock())
    role = SimpleNamespace(takes_writes=takes_writes, epoch=1)
    node: Any = SimpleNamespace(
        host=SimpleNamespace(name="broker-0"), starts=1, process=SimpleNamespace(offsets=offsets, role=role)
    )
    watch = Watch([node], Settings(controllers=False), SimulatedClock())
    watch.follow(node)
    commit(offsets, 25)
    watch.look()
    return watch, offsets


def commit(offsets: ConsumerOffsets, offset: int) -> None:
    offsets.commit(GROUP, TOPIC, 0, offset)


def test_an_offset_goes_back_with_the_first_table_after_a_cut_and_only_then() -> None:
    watch, offsets = watched()
    offsets.log_cut(100)
    watch.look()
    offsets.cut_is_over()
    commit(offsets, 0)
    watch.look()
    commit(offsets, 7)
    watch.look()
    offsets.cut_is_over()  # with the next table, which no cut precedes
    commit(offsets, 6)
    with pytest.raises(Broken, match="went from 7 back to 6 at broker-0"):
        watch.look()


def test_an_offset_that_goes_back_without_a_cut_is_a_failure_also_in_a_new_epoch() -> None:
    watch, offsets = watched()
    watch._brokers[0].process.role.epoch = 2
    offsets.cut_is_over()
    commit(offsets, 24)
    with pytest.raises(Broken, match="went from 25 back to 24 at broker-0"):
        watch.look()


def test_an_offset_that_goes_back_before_the_table_is_taken_is_a_failure() -> None:
    watch, offsets = watched()
    offsets.log_cut(100)
    commit(offsets, 24)
    with pytest.raises(Broken, match="went from 25 back to 24 at broker-0"):
        watch.look()


def test_an_offset_that_goes_back_at_a_master_is_a_failure_also_after_a_cut() -> None:
    watch, offsets = watched(takes_writes=True)
    offsets.log_cut(100)
    offsets.cut_is_over()
    commit(offsets, 24)
    with pytest.raises(Broken, match="went from 25 back to 24 at broker-0"):
        watch.look()


def test_an_offset_goes_back_where_a_master_before_did_not_have_it() -> None:
    """Commits of the last moments of epoch 1 reached no other broker: the master of epoch 2 begins at 0, and consumers with it."""
    watch, offsets = watched()
    other = ConsumerOffsets(clock=SystemClock())
    process = SimpleNamespace(offsets=other, role=SimpleNamespace(takes_writes=True, epoch=2))
    master: Any = SimpleNamespace(host=SimpleNamespace(name="broker-1"), starts=1, process=process)
    watch._brokers.append(master)
    watch.look()
    process.role.takes_writes = False
    watch._brokers[0].process.role = SimpleNamespace(takes_writes=True, epoch=3)
    watch.look()
    commit(offsets, 5)
    watch.look()


def test_an_offset_goes_back_no_further_than_a_master_before_had_it() -> None:
    watch, offsets = watched()
    other = ConsumerOffsets(clock=SystemClock())
    commit(other, 20)
    process = SimpleNamespace(offsets=other, role=SimpleNamespace(takes_writes=True, epoch=2))
    watch._brokers.append(SimpleNamespace(host=SimpleNamespace(name="broker-1"), starts=1, process=process))  # type: ignore[arg-type]
    watch.look()
    process.role.takes_writes = False
    watch._brokers[0].process.role = SimpleNamespace(takes_writes=True, epoch=3)
    watch.look()
    commit(offsets, 19)
    with pytest.raises(Broken, match="went from 25 back to 19 at broker-0"):
        watch.look()
