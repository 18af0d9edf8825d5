"""The values of GET_BROKER_RUNTIME_INFO 28, which brokerStatus and clusterList print.

Source: AdminBrokerProcessor.prepareRuntimeInfo, StoreStatsService (RocketMQ). The table contains every key of a 5.5.0
broker, because tools parse some of them without checking that they exist. Thread pools have no counterpart in one event
loop: queue sizes are 0, capacities are RocketMQ's defaults, and the head wait times are the measured delay of the event
loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from aerobee.broker.metrics.stats import BrokerStats
from aerobee.store.message_store import MessageStore
from aerobee.system_names import SCHEDULE_TOPIC

VERSION_TEXT = "V5_5_0"  # the release whose protocol this broker speaks
_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")

# Keys that Aerobee does not compute, with the values of an idle RocketMQ broker.
_CONSTANT = {
    "EndTransactionQueueSize": "0",
    "EndTransactionThreadPoolQueueCapacity": "100000",
    "ackThreadPoolQueueCapacity": "100000",
    "ackThreadPoolQueueHeadWaitTimeMills": "0",
    "ackThreadPoolQueueSize": "0",
    "brokerActive": "true",
    "brokerVersionDesc": VERSION_TEXT,
    "dispatchBehindBytes": "0",  # queues and index are written with the record
    "dispatchMaxBuffer": "0",
    "litePullThreadPoolQueueCapacity": "100000",
    "litePullThreadPoolQueueSize": "0",
    "pageCacheLockTimeMills": "0",
    "pullThreadPoolQueueCapacity": "100000",
    "pullThreadPoolQueueSize": "0",
    "queryThreadPoolQueueCapacity": "20000",
    "queryThreadPoolQueueSize": "0",
    "remainTransientStoreBufferNumbs": "2147483647",  # no pool
    "sendThreadPoolQueueCapacity": "10000",
    "sendThreadPoolQueueSize": "0",
    "timerCongestNum": "0",
    "timerDequeueTps": "0.0",
    "timerEnqueueTps": "0.0",
    "timerOffsetBehind": "0",
    "timerReadBehind": "0",
}
_WAIT_KEYS = ("litePull", "pull", "query", "send")


class RuntimeInfo:
    """Builds the table."""

    def __init__(
        self,
        *,
        stats: BrokerStats,
        store: MessageStore,
        disk_usage: Callable[[str], tuple[int, int]],
        wait_ms: Callable[[], int] = lambda: 0,
        accepts_sends_from_ms: Callable[[], int] = lambda: 0,
        delivered: Callable[[], Mapping[int, int]] = dict,
        extra: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """`disk_usage` returns (used, total) bytes of the file system of a path (Disk.usage), `wait_ms` the delay of
        the event loop, `delivered` delay level -> next offset to deliver, `extra` further keys.
        """
        self._stats = stats
        self._store = store
        self._disk_usage = disk_usage
        self._wait_ms = wait_ms
        self._accepts_sends_from_ms = accepts_sends_from_ms
        self._delivered = delivered
        self._extra = extra

    def table(self, *, with_extra: bool = True) -> dict[str, str]:
        """The keys of GET_BROKER_RUNTIME_INFO (28), as text; `with_extra`: the further ones, too."""
        store = self._store
        log_ratio, queue_ratio = store.disk_ratios()
        log_path = store.config.commit_log_dir
        wait = str(self._wait_ms())
        return {
            **_CONSTANT,
            **self._stats.runtime_info(),
            **{f"{name}ThreadPoolQueueHeadWaitTimeMills": wait for name in _WAIT_KEYS},
            "commitLogDirCapacity": self._capacity_text(log_path),
            "commitLogDiskRatio": _ratio_text(log_ratio),
            f"commitLogDiskRatio_{log_path}": _ratio_text(log_ratio),
            "commitLogMaxOffset": str(store.log.end),
            "commitLogMinOffset": str(store.log.min_offset),
            "consumeQueueDiskRatio": _ratio_text(queue_ratio),
            "earliestMessageTimeStamp": str(store.earliest_store_time()),
            "remainHowManyDataToFlush": byte_text(max(0, store.log.end - store.flushed.value)),
            "startAcceptSendRequestTimeStamp": str(self._accepts_sends_from_ms()),
            **{
                f"scheduleMessageOffset_{level}": f"{offset},{store.max_offset(SCHEDULE_TOPIC, level - 1)}"
                for level, offset in sorted(self._delivered().items())
            },
            **({**self._stats.own_info(), **self._extra()} if with_extra else {}),
        }

    def _capacity_text(self, path: str) -> str:
        try:
            used, total = self._disk_usage(path)
        except OSError:
            return "Total : unknown, Free : unknown."  # the directory is not there yet
        return f"Total : {byte_text(total)}, Free : {byte_text(total - used)}."


def byte_text(count: int) -> str:
    """Return bytes as RocketMQ shows them: `0 B`, `512 B`, `4.0 KiB`, `252.0 GiB`."""
    if count < 1024:
        return f"{count} B"
    value = float(count)
    for unit in _UNITS:
        value /= 1024
        if value < 1024 or unit == _UNITS[-1]:
            return f"{value:.1f} {unit}"
    raise AssertionError("the last unit has no upper limit")


def _ratio_text(ratio: float) -> str:
    return repr(round(ratio, 2))
