"""The consumer groups of one broker: their settings, how they come to be, and config/subscriptionGroup.json.

Source: SubscriptionGroupManager (RocketMQ). The file is RocketMQ's:

    {"dataVersion":{...}, "forbiddenTable":{group:{topic:bits}}, "subscriptionGroupTable":{name:SubscriptionGroupConfig}}

A bit of the forbidden table takes a permission of one group on one topic away (4: reading). What always holds: the
data version grows with every change, and a change is on disk before it takes effect. A group that came to be by itself
is the exception: it counts at once and is written by a thread soon after, for it would come to be again.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Iterable
from itertools import islice

from aerobee.broker.bounds import Bounds
from aerobee.broker.config import PERM_READ, LiveConfig
from aerobee.broker.config_file import ConfigFile
from aerobee.broker.consumer.consumer_offsets import SYSTEM_GROUP_PREFIX
from aerobee.clock import Clock
from aerobee.errors import MalformedFrame, RemoteError, StoreError, UsageError
from aerobee.message import check_group_name
from aerobee.remoting.body.data_version import DataVersion
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig, SubscriptionGroupWrapper
from aerobee.remoting.codes import ResponseCode

log = logging.getLogger(__name__)

NAMES_SAID_MAX = 10  # in one line of the log
SYSTEM_GROUPS = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)


def is_system_group(group: str) -> bool:
    """True for groups that belong to the product; they are made at once and nobody deletes them."""
    return group in SYSTEM_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)


def check_client_group(group: str) -> None:
    """Raise RemoteError for a group in which the broker keeps its own state: no client consumes or changes it."""
    if group.startswith(SYSTEM_GROUP_PREFIX):
        raise RemoteError(ResponseCode.NO_PERMISSION, f"group {group[:80]} belongs to the broker itself")


class GroupTable:
    """Group name -> SubscriptionGroupConfig. Belongs to the event loop; administrators' changes block for the file's write.

    `run_beside` runs a blocking call in a thread; without it nothing is left to threads.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        live: LiveConfig,
        file: ConfigFile | None = None,
        run_beside: Callable[[Callable[[], None]], None] | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        self._clock = clock
        self._live = live
        self._bounds = bounds or Bounds(live, clock)
        self._file = file
        self._run_beside = run_beside
        self._file_lock = threading.Lock()  # what is written later is never older
        self._is_save_due = False
        self._is_unsaved = False
        self.groups: dict[str, SubscriptionGroupConfig] = {
            name: SubscriptionGroupConfig(name) for name in SYSTEM_GROUPS
        }
        self.forbidden: dict[str, dict[str, int]] = {}
        self._watchers: list[Callable[[], None]] = []
        self.data_version = DataVersion(timestamp=clock.now_ms())

    # --- reading

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        return self.groups.get(group)

    def find_or_create(self, group: str) -> SubscriptionGroupConfig | None:
        """Return the group, created with defaults if autoCreateSubscriptionGroup allows it and the name is legal.

        None: the group is unknown, SUBSCRIPTION_GROUP_NOT_EXIST. RemoteError: there are subscriptionGroupNumsMax. The file follows soon: thousands of groups that are
        new at once keep nobody waiting. One that the disk does not take lives in memory, so that consumers can read
        from a full disk; it is saved when the disk takes it, or made again when it is asked for.
        """
        config = self.groups.get(group)
        if config is not None:
            return config
        return self.find_or_create_all((group,)).get(group)

    def find_or_create_all(self, groups: Iterable[str]) -> dict[str, SubscriptionGroupConfig]:
        """The same for several groups with one write; those that are unknown are missing in the result."""
        names = tuple(dict.fromkeys(groups))
        new = {
            name: SubscriptionGroupConfig(name)
            for name in names
            if name not in self.groups and self._may_create(name)
        }
        if new:
            self._require_room(len(new))
            self.groups = {**self.groups, **new}
            self.data_version = self.data_version.next(self._clock.now_ms())
            self._save_soon()
            self._tell()
            log.info(
                "%d groups were created with defaults: %s", len(new), ", ".join(islice(new, NAMES_SAID_MAX))
            )
        return {name: self.groups[name] for name in names if name in self.groups}

    def is_readable(self, group: str, topic: str) -> bool:
        """False when an administrator has forbidden the group to read the topic."""
        bits = self.forbidden.get(group)
        return bits is None or not bits.get(topic, 0) & PERM_READ

    def wrapper(self) -> SubscriptionGroupWrapper:
        """The whole table, as files and replicas have it."""
        return SubscriptionGroupWrapper(self.groups, self.data_version, self.forbidden)

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call back after each change of a group or of what it is forbidden."""
        self._watchers.append(callback)

    # --- changing

    def put(self, config: SubscriptionGroupConfig) -> None:
        """Create or replace a group. Raises UsageError for an illegal name or value, StoreError."""
        self.put_all((config,))

    def put_all(self, configs: Iterable[SubscriptionGroupConfig]) -> None:
        """Create or replace several groups with one write."""
        batch = {config.group_name: config for config in configs}
        for config in batch.values():
            _check(config, self._live.value.topic_queue_nums_max)
        self._require_room(sum(name not in self.groups for name in batch))
        if any(self.groups.get(name) != config for name, config in batch.items()):
            self._change({**self.groups, **batch}, self.forbidden)

    def delete(self, group: str) -> bool:
        """Forget a group and what it is forbidden. Returns whether it existed."""
        if group not in self.groups:
            return False
        self._change(
            {name: config for name, config in self.groups.items() if name != group},
            {name: bits for name, bits in self.forbidden.items() if name != group},
        )
        return True

    def disable(self, group: str) -> bool:
        """Let the group consume nothing any more. Returns whether it existed."""
        config = self.groups.get(group)
        if config is None:
            return False
        self.put(dataclasses.replace(config, consume_enable=False))
        return True

    def set_readable(self, group: str, topic: str, readable: bool) -> None:
        """Forbid a group to read a topic, or allow it again. Raises StoreError."""
        bits = dict(self.forbidden.get(group, {}))
        bits[topic] = bits.get(topic, 0) & ~PERM_READ if readable else bits.get(topic, 0) | PERM_READ
        if not bits[topic]:
            del bits[topic]
        forbidden = {**self.forbidden, group: bits}
        if not bits:
            del forbidden[group]
        if forbidden != self.forbidden:
            self._change(self.groups, forbidden)

    # --- the file

    def load(self) -> None:
        """Read the file; one that is not there is an empty table. Raises StoreError for one that is broken."""
        fields = self._file.read() if self._file is not None else None
        if fields is None:
            return
        try:
            wrapper = SubscriptionGroupWrapper.from_dict(fields)
        except MalformedFrame as error:
            raise StoreError(f"config/subscriptionGroup.json is not a group table: {error}") from error
        self.groups.update(wrapper.subscription_group_table)
        self.forbidden = wrapper.forbidden_table
        self.data_version = wrapper.data_version

    def save(self) -> None:
        """Write the file. Raises StoreError. Any thread: tables are replaced, never changed."""
        if self._file is not None:
            with self._file_lock:
                self._is_save_due = False
                self._file.write(self.wrapper().to_dict())
                self._is_unsaved = False

    def save_again(self) -> None:
        """Write soon what the disk did not take, if there is such a thing."""
        if self._is_unsaved:
            self._save_soon()

    def _save_soon(self) -> None:
        self._is_unsaved = True
        if self._run_beside is not None:
            if not self._is_save_due:
                self._is_save_due = True
                self._run_beside(self.save)
            return
        try:
            self.save()
        except StoreError as error:
            log.warning("groups that were created by themselves are not saved yet: %s", error)

    def _require_room(self, new_count: int) -> None:
        """Raise RemoteError when there would be too many groups."""
        if new_count:
            self._bounds.require(
                "subscriptionGroupNumsMax", len(self.groups) + new_count, "groups of this broker"
            )

    def _may_create(self, group: str) -> bool:
        # Those of the broker itself are there from the start; nobody makes more of them.
        if not self._live.value.auto_create_subscription_group or group.startswith(SYSTEM_GROUP_PREFIX):
            return False
        try:
            check_group_name(group)
        except UsageError as error:
            log.warning("no group is made: %s", error)
            return False
        return True

    def _change(
        self, groups: dict[str, SubscriptionGroupConfig], forbidden: dict[str, dict[str, int]]
    ) -> None:
        """New table, new version, file, in this order; all back when the file cannot be written."""
        before = self.groups, self.forbidden, self.data_version
        self.groups, self.forbidden = groups, forbidden
        self.data_version = self.data_version.next(self._clock.now_ms())
        try:
            self.save()
        except BaseException:
            self.groups, self.forbidden, self.data_version = before
            raise
        self._tell()

    def _tell(self) -> None:
        for watcher in self._watchers:
            watcher()


def _check(config: SubscriptionGroupConfig, queue_nums_max: int) -> None:
    check_group_name(config.group_name)
    if config.retry_queue_nums > queue_nums_max:
        raise UsageError(
            f"retryQueueNums is {config.retry_queue_nums}, at most {queue_nums_max} queues are allowed (topicQueueNumsMax)"
        )
    if config.retry_max_times < -1:
        raise UsageError(f"retryMaxTimes is {config.retry_max_times}, must be -1 (for ever) or above")
