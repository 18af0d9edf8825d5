"""The steps from where a topic's queues are to where they shall be, such that no message is lost and order is kept. Core.

A topic at a broker has a State: how many queues are read and how many written; (0, 0) is a broker without the topic, write 0 one where it
can only be read. Queues come and go at the end: the last ones of a broker are the newest.

    ordinary topics      GROW read queues at the target      consumers find them before anything is in them
                         SEED offsets of all groups          nobody starts behind the first message
                         ALLOW writing there
                         TAKE writing from the last queues of the source
                         ROUTES                              producers with an old route have asked again
                         DRAIN what is to go                 every group has read it, nothing waits that would come into it
                         REMOVE

    topics whose keys choose the queue: one key is in two queues as soon as two producers count queues differently. Hence

                         GROW, SEED
                         TAKE writing from all brokers       routes have no queue to write to from here ...
                         ROUTES                              nobody writes by an old one: brokers would take it
                         CATCH_UP in all queues              every group has read them
                         PUBLISH the final list of queues    as order configuration, which a route carries whole or not at all
                         ROUTES                              nobody has another list
                         ALLOW                               ... to here
                         ROUTES, UNPUBLISH                   the route says the same again without it
                         DRAIN, REMOVE

steps_for() works from any state that it leads through: an apply that was cut off goes on by asking again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class State(NamedTuple):
    """Queues that are read, and queues that are written, of one topic at one broker."""

    read: int
    write: int


ABSENT = State(0, 0)


class Kind(Enum):
    """What a step does."""

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


CHANGES = (Kind.GROW, Kind.ALLOW, Kind.TAKE, Kind.REMOVE)  # steps that give a broker another State


@dataclass(frozen=True, slots=True)
class Step:
    """One step. `state`: what the broker has afterwards, of CHANGES. `first`, `end`: the queue ids that SEED, CATCH_UP, DRAIN and REMOVE are about."""

    kind: Kind
    topic: str
    broker: str = ""
    state: State = ABSENT
    first: int = 0
    end: int = 0

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
            Kind.ROUTES: "wait until producers have asked for the route again",
            Kind.CATCH_UP: f"wait until every group has read {queues}, while nobody writes",
            Kind.DRAIN: f"wait until every group has read {queues}",
            Kind.PUBLISH: "order configuration with the final queues",
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
) -> list[Step]:
    """The steps to `wanted` queues at each broker; none when all is as it shall be.

    `current` has every broker of `wanted` and those that have the topic now. `keeps_keys`: by the second way. `had_order`: it had an order
    configuration before, which stays, with the final queues.
    """
    goal = {name: wanted.get(name, 0) for name in sorted(set(current) | set(wanted))}
    now = {name: current.get(name, ABSENT) for name in goal}
    if all(now[name] == State(count, count) for name, count in goal.items()):
        return []
    steps = _grown(topic, now, goal)
    if keeps_keys:
        return [*steps, *_with_a_pause(topic, now, goal, had_order=had_order)]
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
    going = [name for name, count in goal.items() if now[name].read > count]
    if going:
        steps.append(Step(Kind.ROUTES, topic))
    for name in going:
        steps += _removal(topic, name, goal[name], now[name].read)
    return steps


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


def _with_a_pause(
    topic: str, now: Mapping[str, State], goal: Mapping[str, int], *, had_order: bool
) -> list[Step]:
    read = {name: max(now[name].read, count) for name, count in goal.items()}
    steps = [Step(Kind.TAKE, topic, name, State(read[name], 0)) for name in goal if now[name].write]
    # Brokers do not look at the topic's permission: who has an old route goes on writing until it asks again.
    steps.append(Step(Kind.ROUTES, topic))
    steps += [Step(Kind.CATCH_UP, topic, name, first=0, end=read[name]) for name in goal if read[name]]
    steps += [Step(Kind.PUBLISH, topic), Step(Kind.ROUTES, topic)]
    steps += [
        Step(Kind.ALLOW, topic, name, State(read[name], count)) for name, count in goal.items() if count
    ]
    if not had_order:
        steps += [Step(Kind.ROUTES, topic), Step(Kind.UNPUBLISH, topic)]
    for name, count in goal.items():
        if read[name] > count:
            steps += _removal(topic, name, count, read[name])
    return steps


def _removal(topic: str, broker: str, count: int, read: int) -> list[Step]:
    return [
        Step(Kind.DRAIN, topic, broker, first=count, end=read),
        Step(Kind.REMOVE, topic, broker, State(count, count), first=count, end=read),
    ]


def trajectory(
    before: Mapping[str, int], after: Mapping[str, int], *, keeps_keys: bool
) -> dict[str, set[State]]:
    """Every State that a broker may have between `before` and `after`, in either direction, also when one was given up for the other."""
    passed = {}
    for name in set(before) | set(after):
        ends = {before.get(name, 0), after.get(name, 0)}
        # Without keys nobody loses all writing but who loses the topic.
        writes = ends | {0} if keeps_keys else ends
        passed[name] = {State(read, write) for read in ends for write in writes if write <= read}
    return passed


def order_text(counts: Mapping[str, int]) -> str:
    """An order configuration, "broker-a:4;broker-b:2", brokers in the order in which a route without one lists them."""
    return ";".join(f"{name}:{count}" for name, count in sorted(counts.items()) if count)
