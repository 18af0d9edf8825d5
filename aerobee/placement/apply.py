"""Applies or reverts a plan, topic by topic, and continues an interrupted run.

Before each step the run reads the state of the topic from the cluster, and steps_for() derives the remaining
steps from it. So a crash between two steps, or between a step and its journal entry, does no harm. A state
that the plan does not lead through comes from another client: the run then changes nothing, and PlanOutgrown
names the difference.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from aerobee.clock import MS_PER_HOUR, Clock
from aerobee.errors import AerobeeError, UsageError
from aerobee.placement.apply_config import ApplyConfig
from aerobee.placement.cluster import PlacementAdmin, Settings
from aerobee.placement.journal import Journal
from aerobee.placement.plan import Plan, TopicChange
from aerobee.placement.steps import (
    ABSENT,
    CHANGES,
    Kind,
    State,
    Step,
    order_counts,
    order_text,
    steps_for,
    trajectory,
)
from aerobee.words import plural

FORWARD, BACK = "apply", "revert"
FIFO = "FIFO"  # the topic type with promised order
CLOCK_SKEW_MAX_MS = 300_000  # maximum lead of the clock of the machine that made the plan


class PlanOutgrown(UsageError):
    """The cluster differs from the plan's; the text states the differences."""


class DrainTimeout(UsageError):
    """The groups did not consume a queue to its end in time; the text names the group. Nothing is lost: apply
    again, or revert.
    """


Watch = Callable[[str, Step, str], None]  # ("begin" | "wait" | "done", step, why it waits)


class Applier:
    """One run over a plan. `watch` is called for each step; an exception of it ends the run."""

    def __init__(
        self,
        admin: PlacementAdmin,
        plan: Plan,
        journal: Journal,
        *,
        clock: Clock,
        config: ApplyConfig,
        watch: Watch = lambda event, step, reason: None,
    ) -> None:
        self._admin = admin
        self._plan = plan
        self._journal = journal
        self._clock = clock
        self._config = config
        self._watch = watch
        self._gate = asyncio.Semaphore(config.parallel)
        self._next_change_s = 0.0
        self._masters: dict[str, str] = {}
        self._had_order: dict[str, str] = {}  # topic -> order configuration before the plan
        self._cluster: list[str] = []
        self._back = False
        self._deletes = False
        self._digest = hashlib.sha256(plan.encode()).hexdigest()
        self._removing: dict[tuple[str, str], dict[str, Any]] = {}

    async def left(self, *, back: bool = False) -> list[Step]:
        """The remaining steps of all topics. Changes nothing. Raises PlanOutgrown."""
        await self._check(back)
        steps = []
        for change in self._changes(back):
            states = (await self._states(change))[0]
            states = {**states, **await self._come_late(change, states)}
            steps += self._steps(change, states, await self._order_of(change))
        return steps

    async def run(self, *, back: bool = False) -> int:
        """Execute the remaining steps; return their number. Raises PlanOutgrown before anything is changed.

        Raises UsageError during another run on the same journal. A failed topic does not stop the others;
        after the last topic an ExceptionGroup contains the failures.
        """
        with self._journal.locked():
            return await self._run(back)

    async def _run(self, back: bool) -> int:
        await self._check(back)
        if self._journal.was_cut_off():
            # Its last request may still be in flight or at a slow broker: it must not take effect after this
            # run's requests.
            await self._clock.sleep(self._config.routes_s)
        direction = BACK if back else FORWARD
        self._journal.note(
            "begin",
            at_ms=self._clock.now_ms(),
            direction=direction,
            ordered=self._had_order,
            plan=self._digest,
            cluster=self._cluster,
        )
        failures: list[Exception] = []

        async def carried_out(change: TopicChange) -> int:
            try:
                return await self._one(change)
            except AerobeeError as error:
                self._journal.note(
                    "failed", at_ms=self._clock.now_ms(), topic=change.topic, reason=str(error)
                )
                failures.append(error)
                return 0

        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(carried_out(change)) for change in self._changes(back)]
        if failures:
            raise ExceptionGroup(f"not at the planned broker: {plural(len(failures), 'topic')}", failures)
        self._journal.note("end", at_ms=self._clock.now_ms(), direction=direction)
        return sum(task.result() for task in running)

    def _changes(self, back: bool) -> list[TopicChange]:
        return [change.reversed() if back else change for change in self._plan.changes]

    def _steps(self, change: TopicChange, states: Mapping[str, State], order: str | None) -> list[Step]:
        own = {
            name: state for name, state in states.items() if state != ABSENT or name in _brokers_of(change)
        }
        return steps_for(
            change.topic,
            own,
            change.after,
            keeps_keys=change.keeps_keys,
            had_order=change.topic in self._had_order,
            order=order,
            # A revert restores the exact text, because its sequence of brokers determines the queues of keys.
            final=self._had_order.get(change.topic) if self._back else None,
        )

    async def _states(self, change: TopicChange) -> tuple[dict[str, State], Settings | None, set[str]]:
        return await self._admin.states(change.topic, self._masters, _brokers_of(change))

    async def _order_of(self, change: TopicChange) -> str | None:
        return await self._admin.order_entry(change.topic) if change.keeps_keys else None

    # before the first change

    async def _check(self, back: bool) -> None:
        self._back = back
        events = self._journal.events_of(self._digest)
        self._removing = {
            (event["topic"], event["broker"]): event for event in events if event["event"] == "removing"
        }
        age_ms = self._clock.now_ms() - self._plan.made_at_ms
        if not events and age_ms < -CLOCK_SKEW_MAX_MS:
            raise PlanOutgrown(
                f"the plan was made {-age_ms / 60_000:.0f} minutes from now, says its "
                "made_at_ms: how old it is cannot be known. Check the clocks of this machine "
                "and of the planning one, and create a new plan"
            )
        age_h = age_ms / MS_PER_HOUR
        if not events and age_h > self._config.plan_age_max_h:
            raise PlanOutgrown(
                f"the plan is {age_h:.0f} hours old, at most {self._config.plan_age_max_h:.0f} are allowed: make a new one"
            )
        if back and not events:
            raise UsageError(f"nothing of this plan was applied: {self._journal.path} has no events")
        await self._check_cluster()
        self._masters = await self._admin.master_addresses()
        self._deletes = await self._admin.nameservers_forget()
        # An order configuration that exists after the first begin may come from this plan.
        noted = next((event["ordered"] for event in events if event["event"] == "begin"), None)
        self._had_order = {} if noted is None else noted
        system = set(await self._admin.system_topics())
        for change in self._plan.changes:
            if change.topic in system:
                raise UsageError(f"topic {change.topic} belongs to the brokers, no plan moves it")
            await self._check_topic(change, begun=bool(events))
            if noted is None:
                await self._note_order(change)
        if any(change.keeps_keys for change in self._plan.changes):
            without = await self._admin.nameservers_without_order()
            if without:
                raise UsageError(
                    f"keys keep their order only where routes carry order configurations: set orderMessageEnable=true at "
                    f"nameserver {', '.join(without)} (it can be changed while it runs), or plan without --move-ordered"
                )

    async def _check_cluster(self) -> None:
        """Raise UsageError for a cluster that has none of the brokers with which the plan was begun."""
        self._cluster = await self._admin.identity()
        known = self._journal.clusters()
        if not known or self._config.moved or not set(self._cluster).isdisjoint(set[str]().union(*known)):
            return
        then, now = ", ".join(sorted(known[-1])[:4]), ", ".join(self._cluster[:4]) or "none"
        raise UsageError(
            f"the plan was begun at another cluster: {self._journal.path} names {then}, here are {now}. Name that cluster's nameservers; "
            f"if it is the same and all of it has other addresses now, add --moved"
        )

    async def _check_topic(self, change: TopicChange, *, begun: bool) -> None:
        missing = _brokers_of(change) - set(self._masters)
        if missing:
            raise PlanOutgrown(f"broker {min(missing)}, which the plan names, has no master now")
        states, settings, _ = await self._states(change)
        if settings is None:
            raise PlanOutgrown(f"topic {change.topic} is not there any more")
        self._check_states(change, states, settings, begun=begun)

    def _check_states(
        self, change: TopicChange, states: Mapping[str, State], settings: Settings, *, begun: bool = True
    ) -> None:
        passed = self._passed(change)
        for name, state in states.items():
            allowed = passed.get(name, {ABSENT})
            if not begun:
                count = change.before.get(name, 0)
                allowed = {State(count, count)}
            if state not in allowed:
                expected = " or ".join(f"{each.read}/{each.write}" for each in sorted(allowed))
                raise PlanOutgrown(
                    f"topic {change.topic} has {state.read} queues to read and {state.write} to write at {name}, the plan "
                    f"knows {expected}: it was changed since. Make a new plan"
                )
        promises = settings.order or settings.message_type == FIFO
        if promises and not change.keeps_keys:
            raise UsageError(
                f"order is promised in topic {change.topic}, but the plan has it as one whose queues may be counted differently for a "
                f"while (keeps_keys is false): make a new plan"
            )

    async def _note_order(self, change: TopicChange) -> None:
        entry = await self._admin.order_entry(change.topic)
        if entry is None:
            return
        if not change.keeps_keys:
            raise UsageError(
                f"topic {change.topic} has an order configuration, but the plan has it as one without order (keeps_keys is false): make "
                f"a new plan"
            )
        if order_counts(entry) != dict(change.before):
            raise UsageError(
                f"topic {change.topic} has the order configuration {entry!r}, its queues are {order_text(change.before)!r}: producers that go "
                f"by it use other queues than the rest. Make them the same, or delete it, and make a new plan"
            )
        self._had_order[change.topic] = entry

    # one topic

    async def _one(self, change: TopicChange) -> int:
        done = 0
        async with self._gate:
            while True:
                states, settings, remnants = await self._states(change)
                if settings is None:
                    raise PlanOutgrown(f"topic {change.topic} was deleted meanwhile")
                self._check_states(change, states, settings)
                late = await self._come_late(change, states)
                for name, state in late.items():
                    await self._admin.put_state(change.topic, self._masters[name], state, settings)
                if late:
                    continue
                steps = self._steps(change, states, await self._order_of(change))
                for step in steps:
                    self._watch("begin", step, "")
                    if not await self._do(step, change, settings):
                        break  # its state must be read again
                    self._journal.note("step", at_ms=self._clock.now_ms(), step=str(step))
                    done += 1
                    self._watch("done", step, "")
                if not steps:
                    # A crash between removing permissions and deleting leaves a topic without a route.
                    names = remnants & _brokers_of(change) if self._deletes else set()
                    if all([await self._delete(change, name, settings) for name in sorted(names)]):
                        return done

    async def _come_late(self, change: TopicChange, states: Mapping[str, State]) -> dict[str, State]:
        """Brokers at which an interrupted run removed queues that then got messages, each with the State that
        makes these queues readable again.
        """
        found = {}
        for (topic, name), event in list(self._removing.items()):  # concurrent topics add entries
            left, shown = event["left"], State(event["read"], event["left"])
            if topic != change.topic or states.get(name) != State(left, left):
                continue
            if shown not in self._passed(change).get(name, ()):
                continue  # the journal was modified by hand
            if not (await self._admin.state_at(topic, self._masters[name]))[1]:
                continue  # the topic was deleted after every group had read it
            ends = await self._admin.ends(topic, name, range(left, shown.read))
            if any(end > event["ends"].get(str(queue_id), 0) for queue_id, end in ends.items()):
                found[name] = shown
        return found

    async def _do(self, step: Step, change: TopicChange, settings: Settings) -> bool:
        """Execute a step; False when the remaining steps must be derived again."""
        admin, topic = self._admin, step.topic
        if step.kind in CHANGES:
            await self._turn()
        match step.kind:
            case Kind.GROW | Kind.ALLOW | Kind.TAKE:
                state = (await admin.state_at(topic, self._masters[step.broker]))[0]
                # The state may be hours old; queues created meanwhile would become invisible.
                self._check_states(change, {step.broker: state}, settings)
                if state.read > step.state.read:
                    return False
                await admin.put_state(topic, self._masters[step.broker], step.state, settings)
            case Kind.SEED:
                await admin.seed(topic, step.broker, self._masters[step.broker], _ids(step))
            case Kind.ROUTES:
                self._watch("wait", step, f"{self._config.routes_s:g} s for routes")
                await self._clock.sleep(self._config.routes_s)
            case Kind.CATCH_UP:
                return await self._drain(step, change, grace_s=0.0)
            case Kind.DRAIN:
                return await self._drain(step, change, grace_s=self._config.grace_s)
            case Kind.PUBLISH:
                await admin.put_order(topic, step.order)
            case Kind.UNPUBLISH:
                await self._wait_for_routes(step)
                await admin.delete_order(topic)
            case Kind.REMOVE:
                return await self._remove(step, change, settings)
        return True

    async def _wait_for_routes(self, step: Step) -> None:
        """Return when every NameServer has the brokers' new queues: RocketMQ's brokers register after their reply.

        Otherwise clients would get a partial route of a topic without an order configuration.
        """
        deadline = self._clock.monotonic() + self._config.drain_s
        while True:
            states = (await self._admin.states(step.topic, self._masters, ()))[0]
            has = {name: state.write for name, state in states.items() if state.write}
            if all(each == has for each in await self._admin.routed_writes(step.topic)):
                return
            if self._clock.monotonic() > deadline:
                raise DrainTimeout(
                    f"{step.topic} has other queues to write in a nameserver's route than at its brokers, {order_text(has) or 'none'}, "
                    f"after {self._config.drain_s:.0f} s: look at the brokers' registration, and apply again, or revert"
                )
            self._watch("wait", step, "for routes that say what brokers have")
            await self._clock.sleep(self._config.poll_s)

    async def _turn(self) -> None:
        """Wait until the next change is due."""
        now = self._clock.monotonic()
        due = max(now, self._next_change_s)
        self._next_change_s = due + 60 / self._config.changes_per_minute
        if due > now:
            await self._clock.sleep(due - now)

    async def _drain(self, step: Step, change: TopicChange, *, grace_s: float) -> bool:
        """Return when, for the grace time, every group has read the queues and no further message can enter them.

        False when the broker has another State meanwhile.
        """
        deadline = self._clock.monotonic() + self._config.drain_s
        since: float | None = None  # time since which every group has read the queues
        settled: float | None = None  # time since which also no POP redelivery is possible
        ends: dict[int, int] | None = None  # end offsets at the previous check
        # While groups catch up, no producer writes at all; otherwise producers write to the remaining queues.
        expected = State(step.end, 0 if step.kind is Kind.CATCH_UP else step.first)
        while True:
            if await self._count_in(step, change, expected) is None:
                return False
            leaves = step.kind is Kind.DRAIN and not step.first
            reason = await self._not_drained(step.topic, step.broker, _ids(step), leaves=leaves)
            unsettled = await self._unsettled(step) if leaves and not reason else ""
            if leaves and not reason and not unsettled:
                # Check again: a message that left the POP records since the first check may be in a retry
                # topic that was empty then.
                reason = await self._not_drained(step.topic, step.broker, _ids(step), leaves=leaves)
            now = self._clock.monotonic()
            found = await self._admin.ends(step.topic, step.broker, _ids(step))
            is_quiet = not reason and ends in (None, found)
            if not is_quiet:
                since = settled = None
            ends = found
            if not reason:
                since = now if since is None else since
                settled = None if unsettled else now if settled is None else settled
                if settled is not None and now - settled >= grace_s:
                    return True
                if now - since >= max(grace_s, self._config.pop_s):
                    return True
            if now > deadline and not is_quiet:  # the grace time does not count against the deadline
                raise DrainTimeout(
                    f"{step.topic} at {step.broker} is not read to its end after {self._config.drain_s:.0f} s: {reason or 'messages come'}. "
                    f"Apply again when it is, name a group that is not used any more with --ignore-group, or revert"
                )
            self._watch("wait", step, reason or unsettled or "for the grace time")
            await self._clock.sleep(self._config.poll_s)

    async def _unsettled(self, step: Step) -> str:
        """Possible invisible POP messages of a topic that leaves a broker which does not report them; "" if brokers report none."""
        for group in await self._admin.reading_groups(step.topic):
            if group in self._config.ignored_groups:
                continue
            reason = await self._admin.unsettled_pops(
                group, step.topic, step.broker, self._masters[step.broker]
            )
            if reason:
                return reason
        return ""

    async def _count_in(self, step: Step, change: TopicChange, expected: State) -> int | None:
        """Number of queue ids of the broker. None if its State was not set by this run, but is an intermediate state of
        the plan.

        Such a State comes from the last request of an interrupted run, which the broker executed after this
        run had read the state. Raises PlanOutgrown for any other State.
        """
        state, count = await self._admin.state_at(step.topic, self._masters[step.broker])
        if state != expected and state in self._passed(change)[step.broker]:
            return None
        if state != expected:
            raise PlanOutgrown(
                f"topic {step.topic} has {state.read} queues to read and {state.write} to write at {step.broker}, this run left "
                f"{expected.read}/{expected.write}: it was changed meanwhile and stays unchanged. Give it {expected.read} and "
                f"{expected.write} queues again and apply or revert, or make a new plan"
            )
        return count

    async def _not_drained(self, topic: str, broker: str, ids: range, *, leaves: bool) -> str:
        """The reason why the queues are not drained, "" when they are. `leaves`: the topic leaves the broker,
        so pending POP redeliveries count too.
        """
        admin, address, ignored = self._admin, self._masters[broker], self._config.ignored_groups
        reason = await admin.unread(topic, broker, ids, ignored)
        if not reason and leaves:
            reason = await admin.waiting_again(topic, broker, address, ignored)
        return reason or await admin.arrivals(topic, broker, address, ids)

    async def _remove(self, step: Step, change: TopicChange, settings: Settings) -> bool:
        """Remove the queues. False when a message entered them at the last moment; then they are readable again.

        A producer with an old route may write to a queue that is still readable, whatever the number of
        writable queues is (RocketMQ). The queues' ends are in the journal before their removal, so that a run
        after a crash can compare them.
        """
        topic, broker, address = step.topic, step.broker, self._masters[step.broker]
        expected = State(step.end, step.state.write)
        count = await self._count_in(step, change, expected)
        if count is None:
            return False
        ids = range(step.first, max(step.end, count))
        before = await self._admin.ends(topic, broker, ids)
        reason = await self._not_drained(topic, broker, ids, leaves=step.state == ABSENT)
        if await self._count_in(step, change, expected) is None:
            return False
        if not reason:
            noted = {
                "topic": topic,
                "broker": broker,
                "ends": {str(queue_id): end for queue_id, end in before.items()},
                "read": step.end,
                "left": step.state.read,
            }
            self._journal.note("removing", **noted)
            self._removing[topic, broker] = noted
            await self._admin.put_state(topic, address, step.state, settings)
            if await self._admin.ends(topic, broker, ids) != before:
                reason = "messages came while they were removed"
                await self._admin.put_state(topic, address, expected, settings)
        if reason:
            self._watch("wait", step, reason)
            await self._clock.sleep(self._config.poll_s)
            return False
        if step.state == ABSENT and self._deletes:
            return await self._delete(change, broker, settings)
        return True

    async def _delete(self, change: TopicChange, name: str, settings: Settings) -> bool:
        """Delete a topic without permissions from a broker. False when it has unread messages; then it is
        readable again.
        """
        topic, address = change.topic, self._masters[name]
        count = (await self._admin.state_at(topic, address))[1]
        reason = await self._not_drained(topic, name, range(count), leaves=True)
        state, shown = (await self._admin.state_at(topic, address))[0], State(count, 0)
        if state != ABSENT or (reason and shown not in self._passed(change)[name]):
            raise PlanOutgrown(
                f"topic {topic} is not deleted at {name}, which has {count} queues of it, {state.read} to read and {state.write} to "
                f"write: {reason or 'it was changed meanwhile'}"
            )
        if reason:
            await self._admin.put_state(topic, address, shown, settings)
            return False
        await self._admin.delete_at(topic, address)
        return True

    def _passed(self, change: TopicChange) -> dict[str, set[State]]:
        return trajectory(change.before, change.after, keeps_keys=change.keeps_keys)


def _brokers_of(change: TopicChange) -> set[str]:
    return set(change.before) | set(change.after)


def _ids(step: Step) -> range:
    return range(step.first, step.end)
