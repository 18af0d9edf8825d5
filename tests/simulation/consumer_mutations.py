"""Mutations that break order and redelivery, one at a time, to show that the simulated runs detect each.

    python tests/simulation/consumer_mutations.py [--seeds 400]

Each mutation replaces a step of the product by a wrong one, as a careless change would. Runs of consumer_world.py run
until one breaks a promise; printed is which seed that was, and how. Ends with status 1 when a mutation survives all of
them.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import itertools
import json
import logging
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest import mock

from aerobee.broker.consumer import lock_table
from aerobee.broker.consumer.lock_calls import LockCalls
from aerobee.broker.delay.schedule import Schedule
from aerobee.broker.send.send_back_service import SendBackService
from aerobee.client.consumer.consumption import Consumption
from aerobee.client.consumer.give_back import GivesBack
from aerobee.client.consumer.ordered_consumption import OrderedConsumption
from aerobee.client.consumer.ordered_ownership import OrderedOwnership
from aerobee.client.consumer.process_queue import ProcessQueue
from aerobee.client.consumer.queue_locking import QueueLocking
from aerobee.client.consumer.queue_locks import QueueLocks

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.simulation import test_ordered_consumption, test_redelivery

Mutation = contextlib.AbstractContextManager[Any]


def nothing(*args: object, **kwargs: object) -> None:
    """In place of a step that is left out."""


# --- order


def a_restarted_broker_forgets_its_locks() -> Mutation:
    return mock.patch.object(LockCalls, "load", nothing)


def a_grant_is_answered_before_it_is_written() -> Mutation:
    stack = contextlib.ExitStack()
    stack.enter_context(mock.patch.object(LockCalls, "_is_saved", True))
    return stack


def a_lock_is_given_to_whoever_asks() -> Mutation:
    return mock.patch.object(lock_table, "_expired", return_value=True)


def queues_are_unlocked_before_their_handler_has_ended() -> Mutation:
    async def release(self: Any, queue: Any) -> None:
        pull = self._pulls[queue]
        await pull.halt()
        await self.locking.give_back([queue])
        await self.consumption.finish(queue)
        pull.stop()
        self._pulls.pop(queue, None)

    return mock.patch.object(OrderedOwnership, "_release", release)


def nobody_looks_at_the_end_of_a_lease() -> Mutation:
    stack = contextlib.ExitStack()
    stack.enter_context(mock.patch.object(QueueLocking, "_check", nothing))
    stack.enter_context(mock.patch.object(QueueLocks, "may_act", return_value=True))
    return stack


def a_handler_goes_on_when_its_queue_is_lost() -> Mutation:
    return mock.patch.object(
        OrderedConsumption, "revoke", lambda self, queue: self._lines.pop(queue, None) and None
    )


def queues_are_consumed_without_a_lock() -> Mutation:
    async def take(self: Any, queues: Any) -> Any:
        return set(queues) - self._releasing

    async def may_begin(self: Any, queue: Any, start: Any) -> bool:
        return True

    stack = contextlib.ExitStack()
    stack.enter_context(mock.patch.object(OrderedOwnership, "take", take))
    stack.enter_context(mock.patch.object(OrderedOwnership, "may_begin", may_begin))
    stack.enter_context(mock.patch.object(OrderedOwnership, "_may_act", return_value=True))
    return stack


# --- redelivery


def offsets_are_committed_as_far_as_pulled() -> Mutation:
    return mock.patch.object(ProcessQueue, "commit_offset", property(lambda self: self._next))


def a_message_is_finished_before_it_is_given_back() -> Mutation:
    original = Consumption._give_back

    async def give_back(self: Any, process: Any, messages: Any, verdict: Any) -> Any:
        for message in messages:
            process.finish(message.queue_offset)
        return await original(self, process, messages, verdict)

    return mock.patch.object(Consumption, "_give_back", give_back)


def a_message_is_not_given_back() -> Mutation:
    async def give_back(self: Any, message: Any, verdict: Any) -> bool:
        return True

    return mock.patch.object(GivesBack, "give_back", give_back)


def tries_are_not_counted() -> Mutation:
    original = SendBackService._again

    def again(self: Any, *args: Any) -> Any:
        message, properties = original(self, *args)
        return dataclasses.replace(message, reconsume_times=message.reconsume_times - 1), properties

    return mock.patch.object(SendBackService, "_again", again)


def a_restarted_broker_delivers_no_retries() -> Mutation:
    original = Schedule.start

    def start(self: Any) -> None:
        if not self._store.queues.get(("SCHEDULE_TOPIC_XXXX", 2)):
            original(self)

    return mock.patch.object(Schedule, "start", start)


# Which runs are to notice, and a seed that is known to, tried first; when the runs change another one is looked for.
MUTATIONS: dict[Callable[[], Mutation], tuple[Callable[[int], None], int]] = {
    a_restarted_broker_forgets_its_locks: (test_ordered_consumption.live, 7),
    a_grant_is_answered_before_it_is_written: (test_ordered_consumption.live, 7),
    a_lock_is_given_to_whoever_asks: (test_ordered_consumption.live, 0),
    queues_are_unlocked_before_their_handler_has_ended: (test_ordered_consumption.live, 0),
    nobody_looks_at_the_end_of_a_lease: (test_ordered_consumption.live, 43),
    a_handler_goes_on_when_its_queue_is_lost: (test_ordered_consumption.live, 43),
    queues_are_consumed_without_a_lock: (test_ordered_consumption.live, 0),
    offsets_are_committed_as_far_as_pulled: (test_redelivery.live, 0),
    a_message_is_finished_before_it_is_given_back: (test_redelivery.live, 17),
    a_message_is_not_given_back: (test_redelivery.live, 0),
    tries_are_not_counted: (test_redelivery.live, 0),
    a_restarted_broker_delivers_no_retries: (test_redelivery.live, 0),
}


def first_to_notice(
    mutation: Callable[[], Mutation], live: Callable[[int], None], seeds: Iterable[int]
) -> tuple[int, str] | None:
    """The first of the seeds whose run breaks a promise under the mutation, and which; None when all pass."""
    with mutation():
        for seed in seeds:
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    live(seed)
            except AssertionError as fault:
                return seed, str(fault).partition("\n")[0]
    return None


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=400)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    survived = 0
    for mutation, (live, known) in MUTATIONS.items():
        noticed = first_to_notice(mutation, live, itertools.chain((known,), range(options.seeds)))
        survived += noticed is None
        seed, how = noticed or (None, "SURVIVES")
        print(
            json.dumps({"mutation": mutation.__name__, "noticed_by_seed": seed, "how": how[:160]}), flush=True
        )
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
