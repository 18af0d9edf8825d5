"""The steps that move a topic's queues without losing messages and with their order kept. Core.

A topic at a broker has a State: the numbers of readable and of writable queues. (0, 0) is a broker without
the topic; with 0 writable queues it is read-only. Queues are added and removed at the end: the last queues of
a broker are the newest.

    topics without keys  GROW read queues at the target      consumers find them before anything is in them
                         SEED offsets of all groups          no group starts behind the first message
                         ALLOW writing there
                         TAKE writing from the last queues of the source
                         ROUTES                              producers with an old route have asked again
                         DRAIN what is to go                 every group has read it, nothing waits that would come into it
                         REMOVE

    topics whose keys choose the queue: one key is in two queues as soon as two producers count queues differently. Hence

                         GROW, SEED
                         PUBLISH the list of queues          as order configuration, which a route carries whole or not at all and
                                                             which clients go by whatever permissions are
                         ROUTES                              all clients use it
                         TAKE writing from all brokers       changes nothing yet: without the list, a client would get a partial route
                         UNPUBLISH                           routes have no queue to write to from here ...
                         ROUTES                              no producer uses an old one: brokers would accept it
                         CATCH_UP in all queues              every group has read them
                         PUBLISH the final list of queues    ... to here
                         ROUTES                              no client has another list
                         ALLOW
                         ROUTES, UNPUBLISH                   the route says the same again without it
                         DRAIN, REMOVE

steps_for() accepts every intermediate state: an interrupted apply continues from the state that it reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class State(NamedTuple):
    """Numbers of readable and of writable queues of one topic at one broker."""

    read: int
    write: int


ABSENT = State(0, 0)


class Kind(Enum):
    """Kind of a step."""

    GROW = "grow"
    SEED = "seed"
    ALLOW = "allow"
    TAKE = "take"
    ROUTES = "routes"
    CATCH_UP = "catch up"
    DRAIN = "drain"
    PUBLISH = "publish"
    UNPUBLISH = "unpublish"
    REMOVE = "remove"


CHANGES = (Kind.GROW, Kind.ALLOW, Kind.TAKE, Kind.REMOVE)  # kinds of steps that change the State of a broker


@dataclass(frozen=True, slots=True)
class Step:
    """One step. `state`: the State after a step of CHANGES. `first`, `end`: range of queue ids of SEED,
    CATCH_UP, DRAIN and REMOVE.

    `order`: the order configuration that PUBLISH sets.
    """

    kind: Kind
    topic: str
    broker: str = ""
    state: State = ABSENT
    first: int = 0
    end: int = 0
    order: str = ""

    def __str__(self) -> str:
        where = f" at {self.broker}" if self.broker else ""
        queues = (
            f"queue {self.first}" if self.end - self.first == 1 else f"queues {self.first} to {self.end - 1}"
        )
        text = {
            Kind.GROW: f"{self.state.read} queues to read",
            Kind.SEED: f"offsets of all groups in {queues}",
            Kind.ALLOW: f"{self.state.write} queues to write",
            Kind.TAKE: f"only {self.state.write} queues to write" if self.state.write else "no writing",
            Kind.ROUTES: "wait until producers have refreshed the route",
            Kind.CATCH_UP: f"wait until every group has read {queues}, while no producer writes",
            Kind.DRAIN: f"wait until every group has read {queues}",
            Kind.PUBLISH: f"order configuration {self.order}",
            Kind.UNPUBLISH: "order configuration taken away",
            Kind.REMOVE: f"{self.state.read} queues are left" if self.state.read else "topic removed",
        }
        return f"{self.topic}{where}: {text[self.kind]}"


def steps_for(
    topic: str,
    current: Mapping[str, State],
    wanted: Mapping[str, int],
    *,
    keeps_keys: bool = False,
    had_order: bool = False,
    order: str | None = None,
    final: str | None = None,
) -> list[Step]:
    """The steps to `wanted` queues at each broker; none when every broker has them.

    `current` has every broker of `wanted` and those that have the topic now. `keeps_keys`: use the second
    sequence above. `had_order`: the topic had an order configuration before the plan; it stays, with the
    final queues. `order`: the present order configuration. `final`: the one for the final queues, if it
    differs from order_text().
    """
    goal = {name: wanted.get(name, 0) for name in sorted(set(current) | set(wanted))}
    now = {name: current.get(name, ABSENT) for name in goal}
    final = final or order_text(goal)
    is_published = keeps_keys and order == final
    closing = [Step(Kind.ROUTES, topic), Step(Kind.UNPUBLISH, topic)] if not had_order else []
    if all(now[name] == State(count, count) for name, count in goal.items()):
        return closing if is_published else []
    steps = _grown(topic, now, goal)
    if is_published and all(now[name].write == count for name, count in goal.items()):
        # The pause had ended when the last run was interrupted: only the final list has writable queues.
        return [*closing, *_removals(topic, goal, {name: state.read for name, state in now.items()})]
    if keeps_keys:
        opening = [] if had_order else [Step(Kind.ROUTES, topic)]
        if order is None:
            opening = [
                Step(
                    Kind.PUBLISH, topic, order=order_text({name: state.write for name, state in now.items()})
                ),
                *opening,
            ]
        pause = _pause(topic, now, goal, opening, final)
        read = {name: max(now[name].read, count) for name, count in goal.items()}
        return [*steps, *pause, *closing, *_removals(topic, goal, read)]
    read = {name: max(now[name].read, count) for name, count in goal.items()}
    steps += [
        Step(Kind.ALLOW, topic, name, State(read[name], count))
        for name, count in goal.items()
        if now[name].write < count
    ]
    steps += [
        Step(Kind.TAKE, topic, name, State(read[name], count))
        for name, count in goal.items()
        if now[name].write > count
    ]
    removals = _removals(topic, goal, read)
    return [*steps, Step(Kind.ROUTES, topic), *removals] if removals else steps


def _grown(topic: str, now: Mapping[str, State], goal: Mapping[str, int]) -> list[Step]:
    steps = [
        Step(Kind.GROW, topic, name, State(count, now[name].write))
        for name, count in goal.items()
        if now[name].read < count
    ]
    return steps + [
        Step(Kind.SEED, topic, name, first=now[name].write, end=count)
        for name, count in goal.items()
        if now[name].write < count
    ]


def _pause(
    topic: str, now: Mapping[str, State], goal: Mapping[str, int], opening: list[Step], final: str
) -> list[Step]:
    """The steps until the final list is written. `opening`: steps at brokers that accept writes, before the write permission is removed."""
    read = {name: max(now[name].read, count) for name, count in goal.items()}
    taken = [Step(Kind.TAKE, topic, name, State(read[name], 0)) for name in goal if now[name].write]
    return [
        *(opening if taken else ()),
        *taken,
        Step(Kind.UNPUBLISH, topic),
        # Brokers do not check the topic's permission: producers with an old route continue to write until they refresh it.
        Step(Kind.ROUTES, topic),
        *(Step(Kind.CATCH_UP, topic, name, first=0, end=read[name]) for name in goal if read[name]),
        Step(Kind.PUBLISH, topic, order=final),
        Step(Kind.ROUTES, topic),
        *(Step(Kind.ALLOW, topic, name, State(read[name], count)) for name, count in goal.items() if count),
    ]


def _removals(topic: str, goal: Mapping[str, int], read: Mapping[str, int]) -> list[Step]:
    steps = []
    for name, count in goal.items():
        if read[name] > count:
            steps += [
                Step(Kind.DRAIN, topic, name, first=count, end=read[name]),
                Step(Kind.REMOVE, topic, name, State(count, count), first=count, end=read[name]),
            ]
    return steps


def trajectory(
    before: Mapping[str, int], after: Mapping[str, int], *, keeps_keys: bool
) -> dict[str, set[State]]:
    """Every State that a broker may have between `before` and `after`, in both directions, also after a
    change of direction.
    """
    passed = {}
    for name in set(before) | set(after):
        ends = {before.get(name, 0), after.get(name, 0)}
        # Without keys a broker loses all writable queues only if the topic leaves it.
        writes = ends | {0} if keeps_keys else ends
        passed[name] = {State(read, write) for read in ends for write in writes if write <= read}
    return passed


def order_text(counts: Mapping[str, int]) -> str:
    """An order configuration, "broker-a:4;broker-b:2", brokers in the order in which a route without one lists them."""
    return ";".join(f"{name}:{count}" for name, count in sorted(counts.items()) if count)


def order_counts(text: str) -> dict[str, int]:
    """Number of queues by broker in an order configuration; {} for another text."""
    found = {}
    for part in filter(None, text.split(";")):
        name, _, count = part.partition(":")
        if not count.isdecimal():
            return {}
        found[name] = int(count)
    return found
