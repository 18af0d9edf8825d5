"""The consumer groups of one broker: settings, automatic creation, and config/subscriptionGroup.json.

Source: SubscriptionGroupManager (RocketMQ). The file is RocketMQ's:

    {"dataVersion":{...}, "forbiddenTable":{group:{topic:bits}}, "subscriptionGroupTable":{name:SubscriptionGroupConfig}}

A bit of the forbidden table takes a permission of one group on one topic away (4: reading). Invariants: the data
version grows with every change, the file is written off the event loop (table_changes.py), and a requested change is on
disk before it takes effect. An automatically created group is the exception: it takes effect immediately and its file
follows, because the group would be created again.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from aerobee.broker.state.bounds import Bounds
from aerobee.broker.state.config import PERM_READ, LiveConfig
from aerobee.broker.state.config_file import ConfigFile
from aerobee.broker.state.refusal import Reason, Refused, remote_refusal
from aerobee.broker.state.table_changes import TableChanges
from aerobee.clock import Clock
from aerobee.errors import MalformedFrame, StoreError, UsageError
from aerobee.message import check_group_name
from aerobee.remoting.body.data_version import DataVersion
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig, SubscriptionGroupWrapper
from aerobee.system_names import SYSTEM_GROUP_PREFIX, SYSTEM_GROUPS

log = logging.getLogger(__name__)

NAMES_SAID_MAX = 10  # maximum number of groups in one log line


def require_client_group(group: str) -> None:
    """Raise Refused for a group in which the broker keeps its own state: no client consumes or changes it."""
    if group.startswith(SYSTEM_GROUP_PREFIX):
        raise Refused(Reason.FORBIDDEN, f"group {group[:80]} belongs to the broker itself")


def check_client_group(group: str) -> None:
    """As require_client_group(), for handlers of remoting: raises RemoteError."""
    try:
        require_client_group(group)
    except Refused as refused:
        raise remote_refusal(refused) from refused


_Forbidden = dict[str, dict[str, int]]
_Value = tuple[dict[str, SubscriptionGroupConfig], _Forbidden, DataVersion]
_Change = Callable[[_Value], _Value]


class GroupTable:
    """Group name -> SubscriptionGroupConfig. Belongs to the event loop; only save() and load() block.

    The methods that serve requests end in _async: durable on return. The plain forms change memory; their file follows.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        live: LiveConfig,
        file: ConfigFile | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        self._clock = clock
        self._live = live
        self._bounds = bounds or Bounds(live, clock)
        self._file = file
        self.groups: dict[str, SubscriptionGroupConfig] = {
            name: SubscriptionGroupConfig(name) for name in SYSTEM_GROUPS
        }
        self.forbidden: _Forbidden = {}
        self._watchers: list[Callable[[], None]] = []
        self.data_version = DataVersion(timestamp=clock.now_ms())
        self._changes: TableChanges[_Value, None] = TableChanges(
            self, run=None if file is None else file.run, what="consumer groups"
        )

    # --- reading

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        """The group's settings; None when it is unknown. Creates nothing."""
        return self.groups.get(group)

    def find_or_create(self, group: str) -> SubscriptionGroupConfig | None:
        """Return the group, created with defaults if autoCreateSubscriptionGroup allows it and the name is legal.

        None: the group is unknown, SUBSCRIPTION_GROUP_NOT_EXIST. RemoteError: subscriptionGroupNumsMax is reached. The
        file is written soon after the return, so that thousands of new groups delay no request. A group that cannot be written stays in
        memory, so that consumers can read from a broker with a full disk; it is saved when the disk accepts it, or
        recreated at its next request.
        """
        config = self.groups.get(group)
        if config is not None:
            return config
        return self.find_or_create_all((group,)).get(group)

    def find_or_create_all(self, groups: Iterable[str]) -> dict[str, SubscriptionGroupConfig]:
        """The same for several groups with one write; unknown groups are missing in the result."""
        names = tuple(dict.fromkeys(groups))
        new = {
            name: SubscriptionGroupConfig(name)
            for name in names
            if name not in self.groups and self._may_create(name)
        }
        if new:
            self._require_room(len(self.groups) + len(new))
            self._take_now(lambda value: ({**value[0], **new}, value[1], value[2]))
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
        """Register a callback for changes of a group or of its forbidden topics."""
        self._watchers.append(callback)

    # --- changing

    async def put_async(self, configs: Iterable[SubscriptionGroupConfig]) -> None:
        """Create or replace groups with one write. Raises UsageError for an illegal name or value, RemoteError (too many
        groups), StoreError; nothing is changed then.
        """
        await self._changes.change(self._putting(configs), None)

    async def delete_async(self, group: str) -> None:
        """Delete a group, if it exists, and its forbidden topics. Raises StoreError."""
        await self._changes.change(_deleting(group), None)

    async def set_readable_async(self, group: str, topic: str, readable: bool) -> None:
        """Forbid a group to read a topic, or allow it again. Raises StoreError."""
        await self._changes.change(_setting_readable(group, topic, readable), None)

    def put(self, config: SubscriptionGroupConfig) -> None:
        """Create or replace a group. Raises UsageError for an illegal name or value."""
        self._take_now(self._putting((config,)))

    def delete(self, group: str) -> bool:
        """Delete a group and its forbidden topics. Returns whether it existed."""
        return self._take_now(_deleting(group))

    def disable(self, group: str) -> bool:
        """Disable consumption for the group. Returns whether it existed."""
        config = self.groups.get(group)
        if config is None:
            return False
        self.put(dataclasses.replace(config, consume_enable=False))
        return True

    def set_readable(self, group: str, topic: str, readable: bool) -> None:
        """Forbid a group to read a topic, or allow it again."""
        self._take_now(_setting_readable(group, topic, readable))

    def _putting(self, configs: Iterable[SubscriptionGroupConfig]) -> _Change:
        batch = {config.group_name: config for config in configs}
        for config in batch.values():
            _check(config, self._live.value.topic_queue_nums_max)

        def put(value: _Value) -> _Value:
            groups, forbidden, version = value
            if all(groups.get(name) == config for name, config in batch.items()):
                return value
            new = sum(name not in groups for name in batch)
            if new:
                self._require_room(len(groups) + new)
            return {**groups, **batch}, forbidden, version

        return put

    def copy_from(self, wrapper: SubscriptionGroupWrapper) -> None:
        """Replace the table in memory by a master's table and version. The file follows."""
        self.take((dict(wrapper.subscription_group_table), wrapper.forbidden_table, wrapper.data_version), ())
        self._changes.write_soon()

    # --- the file

    def load(self) -> None:
        """Read the file; a missing file is an empty table. Raises StoreError for a damaged one."""
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
        """Write the file, blocking. Raises StoreError."""
        if self._file is not None:
            self.write(self.current())

    def retry(self) -> None:
        """Retry a failed write, if there is one."""
        self._changes.retry()

    async def settled(self) -> None:
        """Return when every requested change is in the file, or refused."""
        await self._changes.settled()

    def abandon(self) -> None:
        """Write nothing more, as after a kill."""
        self._changes.abandon()

    # --- for table_changes.py

    def current(self) -> _Value:
        return self.groups, self.forbidden, self.data_version

    def sealed(self, value: _Value) -> _Value:
        groups, forbidden, version = value
        return groups, forbidden, version.next(self._clock.now_ms())

    def take(self, value: _Value, notes: Sequence[None]) -> None:
        self.groups, self.forbidden, self.data_version = value
        for watcher in self._watchers:
            watcher()

    def write(self, value: _Value) -> None:
        assert self._file is not None
        groups, forbidden, version = value
        self._file.write(SubscriptionGroupWrapper(groups, version, forbidden).to_dict())

    # --- helpers

    def _take_now(self, change: _Change) -> bool:
        """Change memory and let the file follow. Returns whether anything changed."""
        before = self.current()
        value = change(before)
        if value is before:
            return False
        self.take(self.sealed(value), ())
        self._changes.write_soon()
        return True

    def _require_room(self, count: int) -> None:
        """Raise RemoteError when this number of groups exceeds the bound."""
        self._bounds.require("subscriptionGroupNumsMax", count, "groups of this broker")

    def _may_create(self, group: str) -> bool:
        # Internal groups exist from the start; no request adds any.
        if not self._live.value.auto_create_subscription_group or group.startswith(SYSTEM_GROUP_PREFIX):
            return False
        try:
            check_group_name(group)
        except UsageError as error:
            log.warning("no group is created: %s", error)
            return False
        return True


def _deleting(group: str) -> _Change:
    def delete(value: _Value) -> _Value:
        groups, forbidden, version = value
        if group not in groups:
            return value
        return (
            {name: config for name, config in groups.items() if name != group},
            {name: bits for name, bits in forbidden.items() if name != group},
            version,
        )

    return delete


def _setting_readable(group: str, topic: str, readable: bool) -> _Change:
    def change(value: _Value) -> _Value:
        groups, before, version = value
        bits = dict(before.get(group, {}))
        bits[topic] = bits.get(topic, 0) & ~PERM_READ if readable else bits.get(topic, 0) | PERM_READ
        if not bits[topic]:
            del bits[topic]
        forbidden = {**before, group: bits}
        if not bits:
            del forbidden[group]
        return value if forbidden == before else (groups, forbidden, version)

    return change


def _check(config: SubscriptionGroupConfig, queue_nums_max: int) -> None:
    check_group_name(config.group_name)
    if config.retry_queue_nums > queue_nums_max:
        raise UsageError(
            f"retryQueueNums is {config.retry_queue_nums}, at most {queue_nums_max} queues are allowed (topicQueueNumsMax)"
        )
    if config.retry_max_times < -1:
        raise UsageError(f"retryMaxTimes is {config.retry_max_times}, must be -1 (no limit) or above")
