"""Each fuzzer must find known faults: a fix is taken out, and the fuzzer must report it.

Each mutation makes the product what it was before one of the mends that docs/security.md and docs/damage.md promise. The
fuzzer runs over a bounded number of sequences or cases and has to end with a fault that names it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest import mock

import pytest

from aerobee import config as settings
from aerobee import message as messages
from aerobee.broker.admin import broker as broker_calls
from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets
from aerobee.broker.fastpath import shared as fast_shared
from aerobee.broker.fastpath.choice import VARIABLE
from aerobee.broker.send import request_reply, send_service
from aerobee.store.queue import queue_table
from aerobee.store.recovery.queue_mender import QueueMender
from aerobee.store.recovery.queue_rebuild import QueueRebuild
from aerobee.store.recovery.recovery import Recovery
from tests.abuse import damage, semantic_fuzzer
from tests.survival.hostile_frames import Fault

Mutation = AbstractContextManager[Any]
patch = mock.patch.object
SEQUENCES, WORLDS_MAX = 1_500, 16
DAMAGE_CASES_MAX = 100
ANYTHING = re.compile(r".*\Z", re.DOTALL)


def nothing(*args: object, **kwargs: object) -> None:
    """In place of a check that is left out."""


@contextmanager
def all_of(*mutations: Mutation) -> Iterator[None]:
    with ExitStack() as stack:
        for mutation in mutations:
            stack.enter_context(mutation)
        yield


# --- the semantic fuzzer


def names_are_not_checked_at_the_edge() -> Mutation:
    return patch(messages, "LEGAL_NAME", ANYTHING)


def names_are_not_checked_where_the_path_is_made() -> Mutation:
    return all_of(names_are_not_checked_at_the_edge(), patch(queue_table, "check_component", nothing))


def offsets_are_not_held_to_the_queue() -> Mutation:
    def commit(self: ConsumerOffsets, group: str, topic: str, queue_id: int, offset: int, client: str) -> str:
        self.commit(group, topic, queue_id, offset, client=client)
        return ""

    return patch(ConsumerOffsets, "commit_by_client", commit)


def wait_is_searched_for_in_the_text() -> Mutation:
    def wants(properties: Mapping[str, str]) -> bool:
        text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
        return "WAIT\x01false" not in text

    return all_of(
        patch(send_service, "wants_to_wait", wants),
        patch(fast_shared, "wants_to_wait", wants),
    )


def settings_are_not_escaped() -> Mutation:
    return all_of(
        patch(settings, "_escape", lambda text, separators="": text),
        patch(settings, "check_wire_settings", nothing),
        patch(broker_calls, "check_wire_settings", nothing),
    )


def clients_write_to_the_brokers_own_topics() -> Mutation:
    taken: Callable[[str], bool] = lambda topic: True  # noqa: E731
    return all_of(
        patch(send_service, "takes_client_sends", taken), patch(request_reply, "takes_client_sends", taken)
    )


SEMANTIC: dict[str, tuple[str, Callable[[], Mutation], str]] = {
    f"{role}: {mutation.__name__}": (role, mutation, said)
    for role, mutation, said in (
        ("broker", names_are_not_checked_at_the_edge, "there is a (topic|group) with the name"),
        ("broker", names_are_not_checked_where_the_path_is_made, "made (outside|in) the store"),
        ("broker", offsets_are_not_held_to_the_queue, "has offset .* which ends at|has an offset of queue|the broker's own"),
        ("broker", wait_is_searched_for_in_the_text, "was answered when the disk had"),
        ("nameserver", settings_are_not_escaped, "paths in force are|that say where files lie"),
        ("broker", clients_write_to_the_brokers_own_topics, "the broker's own topic|cannot be delivered|TIMER_OUT_MS"),
    )
}  # fmt: skip


def _worlds(mutation: Callable[[], Mutation]) -> range:
    """Those in which it may be noticed: a broker answers too early only where it waits for its disk."""
    every = semantic_fuzzer.WAITS_FOR_DISK_EVERY
    if mutation is wait_is_searched_for_in_the_text:
        return range(every - 1, every * WORLDS_MAX, every)
    return range(WORLDS_MAX)


@pytest.mark.parametrize("name", SEMANTIC)
def test_the_semantic_fuzzer_notices_that(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    role, mutation, said = SEMANTIC[name]
    monkeypatch.setenv(VARIABLE, "python")  # whose checks can be taken out
    heard = "nothing"
    with mutation():
        for world in _worlds(mutation):
            try:
                asyncio.run(semantic_fuzzer.run(role, SEQUENCES, seed=9, first_cluster=world, size=SEQUENCES))
            except Fault as fault:
                heard = str(fault)
                if re.search(said, heard):
                    return
    pytest.fail(f"not noticed in {WORLDS_MAX} clusters; last output: {heard[:2000]}")


# --- the damage fuzzer


def lost_queue_entries_are_not_built_again() -> Mutation:
    return patch(QueueRebuild, "look", nothing)


def the_end_is_not_compared_with_the_checkpoint_and_the_queues() -> Mutation:
    return patch(Recovery, "_judge_lost_tail", nothing)


def a_damaged_entry_is_not_looked_for_in_the_log() -> Mutation:
    return patch(QueueMender, "mend", lambda *args: False)


def offsets_of_lost_messages_are_not_kept() -> Mutation:
    return patch(QueueRebuild, "keep_ends", nothing)


DAMAGE: dict[str, tuple[Callable[[], Mutation], str]] = {
    mutation.__name__: (mutation, said)
    for mutation, said in (
        (lost_queue_entries_are_not_built_again, "is whole and not served|gives .* again"),
        (the_end_is_not_compared_with_the_checkpoint_and_the_queues, "gives .* again|is whole and not served|is said"),
        (a_damaged_entry_is_not_looked_for_in_the_log, "is whole and not served"),
        (offsets_of_lost_messages_are_not_kept, "gives .* again"),
    )
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_the_damage_fuzzer_notices_that(name: str) -> None:
    mutation, said = DAMAGE[name]
    with mutation(), pytest.raises(damage.Fault, match=said):
        damage.run_cases(1, DAMAGE_CASES_MAX)
