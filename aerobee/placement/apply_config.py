"""Speed and safety settings of the execution of a plan."""

from __future__ import annotations

from dataclasses import dataclass, field

from aerobee.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyConfig:
    """Speed and safety of applying a plan.

    `parallel`: concurrent topics. `changes_per_minute`: of all topics together. `routes_s`: after it every
    producer has refreshed its route (RocketMQ's clients refresh every 30 s), and its sends by the old route
    have arrived or failed. `grace_s`: how long a queue that is read to its end stays readable, for consumers
    whose offsets brokers do not know. `pop_s`: longest time for which a broker that does not report POP
    deliveries (RocketMQ's) keeps a topic that moves away: the longest invisible time of a consumer.
    `drain_s`: longest wait for one drain. `ignored_groups`: groups for which steps do not wait. `moved`:
    accept a cluster without any of the brokers with which the plan was begun.
    """

    parallel: int = 4
    changes_per_minute: float = 60.0
    routes_s: float = 35.0
    grace_s: float = 60.0
    pop_s: float = 900.0
    drain_s: float = 3_600.0
    poll_s: float = 1.0
    plan_age_max_h: float = 24.0
    ignored_groups: frozenset[str] = field(default=frozenset())
    moved: bool = False

    def __post_init__(self) -> None:
        if self.parallel < 1 or not self.changes_per_minute > 0:
            raise UsageError("topics at a time and changes a minute must be above 0")
        times = (self.routes_s, self.grace_s, self.pop_s, self.drain_s, self.poll_s, self.plan_age_max_h)
        if not all(each >= 0 for each in times):  # NaN fails this comparison too
            raise UsageError("a time is below 0, or no number")
