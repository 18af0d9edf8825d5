"""Settings of the store. Field names are RocketMQ's MessageStoreConfig keys in snake case, defaults are the same but where docs/settings.md says so.

`mappedFileSizeCommitLog` is `mapped_file_size_commit_log`, and so on. The last block holds Aerobee's own keys.
Intervals are milliseconds, sizes bytes, ratios percent, unless the name says otherwise.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, fields
from enum import StrEnum

from aerobee.errors import ConfigError
from aerobee.host_port import split_address
from aerobee.peer_hosts import parse_networks

QUEUE_ENTRY_BYTES = 20
BATCH_QUEUE_ENTRY_BYTES = 46
HA_FRAME_BYTES_MAX = 4 << 20
# Maximum number of scattered messages in one reply, equal to the pull size of RocketMQ's clients. A reply of
# more has of messages that may have left the memory only those that lie within RUN_BYTES_MAX: that is the
# limit of one read from the disk.
SCATTERED_COUNT_MAX, RUN_BYTES_MAX = 32, 2 << 20
HA_KEY_CHARS_MIN = 16
TIMER_WHEEL_SLOTS = 7 * 86_400  # the wheel's file has twice as many
_ASSUMED_MEMORY_BYTES = 24 << 30  # RocketMQ's, where the machine does not tell
_DELAY_LEVEL = re.compile(r"(\d+)([smhd])\Z")
_DELAY_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class FlushDiskType(StrEnum):
    """Acknowledgement of a send: immediately, or after its record is on disk."""

    ASYNC_FLUSH = "ASYNC_FLUSH"
    SYNC_FLUSH = "SYNC_FLUSH"


class BrokerRole(StrEnum):
    """A slave's store takes messages from its master only."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Checked on construction; raises ConfigError naming key, value and reason."""

    store_path_root_dir: str = os.path.join(os.path.expanduser("~"), "store")
    """Directory of all files of the broker."""
    store_path_commit_log: str = ""
    """Directory of the commit log. Empty: <root>/commitlog."""
    mapped_file_size_commit_log: int = 1_073_741_824
    """Size of a commit log file, in bytes."""
    mapped_file_size_consume_queue: int = 6_000_000
    """Size of a consume queue file, in bytes; a message takes 20."""
    mapper_file_size_batch_consume_queue: int = 13_800_000
    """Size of a batch consume queue file, in bytes; a batch takes 46."""
    max_hash_slot_num: int = 5_000_000
    """Number of hash slots of an index file."""
    max_index_num: int = 20_000_000
    """Maximum number of keys in an index file."""
    message_index_enable: bool = True
    """Write message keys to the index. False: messages cannot be searched by key."""
    max_message_size: int = 4_194_304
    """Maximum size of a message body, in bytes. A larger message is refused."""
    max_msgs_num_batch: int = 64
    """Maximum number of messages that a query by key returns."""
    default_query_max_num: int = 32
    """Maximum number of messages that a query by unique key returns."""

    broker_role: BrokerRole = BrokerRole.ASYNC_MASTER
    """ASYNC_MASTER replies without waiting for slaves, SYNC_MASTER when enough slaves have the message; SLAVE
    copies the master of brokerName.
    """
    # replication
    ha_shared_key: str = field(default="", repr=False)
    """Shared key with which the brokers of a group authenticate each other at the HA port. Empty: none."""
    ha_allowed_hosts: str = ""
    """Addresses and networks, separated by commas, from which slaves may connect. Empty: the addresses that the
    controllers know; without controllers any address.
    """
    ha_tls_cert_path: str = ""
    """PEM certificate. Set: the HA port and connections to a master's HA port use TLS."""
    ha_tls_key_path: str = ""
    """PEM private key of haTlsCertPath, without a password."""
    ha_tls_trust_cert_path: str = ""
    """PEM file of authorities. Set: master and slave each require a certificate signed by one of them."""
    ha_listen_port: int = 0
    """Port to which slaves connect. 0: listenPort + 1, or a free port when listenPort is 0."""
    ha_master_address: str = ""
    """host:port of the master's HA port. Empty: the address that the NameServer returns."""
    ha_send_heartbeat_interval: int = 5_000
    """Interval between two heartbeats of an idle HA connection, in ms."""
    ha_housekeeping_interval: int = 20_000
    """Idle time after which an HA connection is closed, in ms."""
    ha_transfer_batch_size: int = 32_768
    """Maximum size of one HA frame, in bytes. A slave more than 8 MiB behind gets frames of up to 1 MiB."""
    ha_max_gap_not_in_sync: int = 268_435_456
    """Lag above which a slave does not count as in sync, in bytes."""
    slave_timeout: int = 3_000
    """Maximum time that a send waits for slaves, in ms."""
    total_replicas: int = 1
    """Intended number of brokers of the group, this one included."""
    in_sync_replicas: int = 1
    """Number of copies that a SYNC_MASTER waits for, its own included."""
    min_in_sync_replicas: int = 1
    """Minimum number of in-sync copies; with fewer the master refuses messages. Requires enableAutoInSyncReplicas."""
    enable_auto_in_sync_replicas: bool = False
    """With enableSlaveActingMaster: wait only for the slaves that are in sync."""
    all_ack_in_sync_state_set: bool = False
    """Controller mode: a send waits for every member of the in-sync set."""
    async_learner: bool = False
    """Controller mode: the broker replicates and never becomes master."""
    ha_max_time_slave_not_catchup: int = 15_000
    """Controller mode: a slave that lags for longer leaves the in-sync set, in ms."""
    store_path_epoch_file: str = ""
    """Controller mode: file of the epochs. Empty: epochFileCheckpoint in storePathRootDir."""
    store_path_broker_identity: str = ""
    """Controller mode: file of the broker's identity. Empty: brokerIdentity in storePathRootDir."""
    sync_from_last_file: bool = False
    """An empty slave copies only the newest log file, as RocketMQ's slaves can."""
    flush_disk_type: FlushDiskType = FlushDiskType.ASYNC_FLUSH
    """ASYNC_FLUSH replies before the message is on the disk, SYNC_FLUSH after."""
    sync_flush_timeout: int = 5_000
    """Maximum time that a send waits for the disk or for slaves, in ms; then FLUSH_DISK_TIMEOUT or
    FLUSH_SLAVE_TIMEOUT.
    """
    flush_interval_commit_log: int = 500
    """Interval between two flushes of the log with ASYNC_FLUSH, in ms."""
    flush_commit_log_least_pages: int = 4
    """Minimum number of dirty pages of 4 KiB for a flush by flushIntervalCommitLog."""
    flush_commit_log_thorough_interval: int = 10_000
    """Interval after which the log is flushed with fewer dirty pages than flushCommitLogLeastPages, in ms."""
    flush_interval_consume_queue: int = 1_000
    """Interval between two flushes of the consume queues, in ms."""
    flush_consume_queue_thorough_interval: int = 60_000
    """Interval after which every consume queue is flushed, however few entries are new, in ms."""

    enable_lmq: bool = False
    """Enable light message queues (LMQ). Requires enableMultiDispatch."""
    enable_multi_dispatch: bool = False
    """Also add a message to the LMQs that its property INNER_MULTI_DISPATCH names."""
    max_lmq_consume_queue_num: int = 20_000
    """Maximum number of LMQs of a broker."""
    enable_consume_queue_ext: bool = False
    """Write extension entries with store time and filter bits."""
    mapped_file_size_consume_queue_ext: int = 48 * 1024 * 1024
    """Size of a file of extension entries, in bytes, with enableConsumeQueueExt."""

    clean_resource_interval: int = 10_000
    """Interval between two searches for files to delete, in ms."""
    delete_when: str = "04"
    """Local hours at which expired files are deleted, separated by ;."""
    file_reserved_time: int = 72
    """How long log files are kept, in hours."""
    delete_file_batch_max: int = 10
    """Maximum number of log files that one search deletes."""
    disk_max_used_space_ratio: int = 75
    """Disk usage above which expired files are deleted before deleteWhen, in percent."""
    disk_space_clean_forcibly_ratio: int = 85
    """Disk usage above which files are deleted before fileReservedTime, in percent."""
    disk_space_warning_level_ratio: int = 90
    """Disk usage above which the broker refuses messages, in percent."""
    clean_file_forcibly_enable: bool = True
    """Delete files before fileReservedTime on a full disk. False: keep them."""

    access_message_in_memory_max_ratio: int = 40
    """Share of memory that counts as hot at the end of the log, in percent. Reads of older data are sent to a slave."""
    max_transfer_count_on_message_in_memory: int = 1_024
    """Maximum number of messages of one reply with hot data."""
    max_transfer_bytes_on_message_in_memory: int = 262_144
    """Maximum size of one reply with hot data, in bytes."""
    max_transfer_count_on_message_in_disk: int = 1_024
    """Maximum number of messages of one reply with cold data."""
    max_transfer_bytes_on_message_in_disk: int = 65_536
    """Maximum size of one reply with cold data, in bytes."""
    max_filter_message_size: int = 16_000
    """Maximum size of the queue entries that one read scans, in bytes."""

    check_crc_on_recover: bool = field(default=True, metadata={"key": "checkCRCOnRecover"})
    """Compare the checksum of each body when the broker starts after a crash."""
    offset_check_in_slave: bool = False
    """A slave corrects offsets beyond its own log, which may lag behind the master's."""
    message_delay_level: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    """Delays of the levels 1, 2, …, separated by blanks; units s, m, h, d."""

    timer_wheel_enable: bool = True
    """Accept messages with any delivery time (TIMER_DELIVER_MS and similar properties)."""
    timer_precision_ms: int = 1_000
    """Time span of one slot of the timer wheel, in ms."""
    timer_max_delay_sec: int = 259_200
    """Maximum delay of a message, in seconds. A longer one is refused."""
    timer_roll_window_slot: int = 172_800
    """Number of slots after which a message that waits longer is stored again."""
    timer_flush_interval_ms: int = 1_000
    """Interval between two checkpoints of the timer, in ms."""
    append_topic_for_timer_delete_key: bool = False
    """A recall stores topic and id of the message. False: the id alone."""
    timer_congest_num_each_slot: int = 2_147_483_647
    """Number of messages in one slot from which on the broker refuses more and more messages for it."""
    mapped_file_size_timer_log: int = 104_857_600
    """Size of a timer log file, in bytes."""

    memory_bytes: int = 0
    """Physical memory that accessMessageInMemoryMaxRatio refers to, in bytes. 0: that of the machine."""
    commit_log_reserve_bytes: int = 8_388_608
    """Disk space reserved ahead in the log, in bytes, so that a full disk is reported as an error."""
    mapped_queue_files_max: int = 0
    """Maximum number of open consume queue files. 0: derived from the process's limit of open files."""
    hot_read_bytes: int = 67_108_864
    """Size of the newest part of the log that is read without checking whether it is in memory, in bytes."""
    truncate_corrupt_log: bool = False
    """Start although acknowledged records are damaged, and skip those records."""
    check_queues_on_start: bool = False
    """Compare every consume queue entry with the log at the start, which reads the whole log."""

    def __post_init__(self) -> None:
        for name, kind in (("flush_disk_type", FlushDiskType), ("broker_role", BrokerRole)):
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, kind(value))
            except ValueError as error:
                allowed = ", ".join(member.value for member in kind)
                raise ConfigError(
                    f"{rocketmq_key(name)} is {value!r}: it must be one of {allowed}"
                ) from error
        for each in fields(self):
            value = getattr(self, each.name)
            if each.type == "int" and (not isinstance(value, int) or isinstance(value, bool)):
                raise ConfigError(f"{rocketmq_key(each.name)} is {value!r}: it must be a whole number")
        for name in _POSITIVE:
            if getattr(self, name) <= 0:
                raise ConfigError(f"{rocketmq_key(name)} is {getattr(self, name)}: it must be above 0")
        for name in _NOT_NEGATIVE:
            if getattr(self, name) < 0:
                raise ConfigError(f"{rocketmq_key(name)} is {getattr(self, name)}: it must not be below 0")
        self._check_replicas()
        if not self.store_path_root_dir:
            raise ConfigError("storePathRootDir is empty: name the directory of the store")
        for name, entry_bytes in (
            ("mapped_file_size_consume_queue", QUEUE_ENTRY_BYTES),
            ("mapper_file_size_batch_consume_queue", BATCH_QUEUE_ENTRY_BYTES),
        ):
            # RocketMQ rounds up to whole entries instead; then the actual file size differs from the
            # configured one.
            if getattr(self, name) % entry_bytes:
                raise ConfigError(
                    f"{rocketmq_key(name)} is {getattr(self, name)}: it must be a multiple of {entry_bytes}, "
                    "the size of one entry"
                )
        if self.mapped_file_size_commit_log < 4096:
            raise ConfigError(
                f"mappedFileSizeCommitLog is {self.mapped_file_size_commit_log}: it must be at least 4096"
            )
        if not 10 <= self.disk_max_used_space_ratio <= 95:
            raise ConfigError(
                f"diskMaxUsedSpaceRatio is {self.disk_max_used_space_ratio}: it must be from 10 to 95"
            )
        for name, low, high in (
            ("disk_space_clean_forcibly_ratio", 1, 99),
            ("disk_space_warning_level_ratio", 1, 100),
            ("access_message_in_memory_max_ratio", 0, 100),
        ):
            if not low <= getattr(self, name) <= high:
                raise ConfigError(
                    f"{rocketmq_key(name)} is {getattr(self, name)}: it must be from {low} to {high}"
                )
        if self.disk_space_clean_forcibly_ratio > self.disk_space_warning_level_ratio:
            raise ConfigError(
                f"diskSpaceCleanForciblyRatio is {self.disk_space_clean_forcibly_ratio}: it must not be above "
                f"diskSpaceWarningLevelRatio, which is {self.disk_space_warning_level_ratio}"
            )
        for hour in self.delete_when.split(";"):
            if hour and not (hour.isdecimal() and int(hour) < 24):
                raise ConfigError(
                    f"deleteWhen is {self.delete_when!r}: it takes hours 00 to 23 separated by ;"
                )
        if self.mapped_file_size_timer_log < 4096:
            raise ConfigError(
                f"mappedFileSizeTimerLog is {self.mapped_file_size_timer_log}: it must be at least 4096"
            )
        if not 3 <= self.timer_roll_window_slot <= TIMER_WHEEL_SLOTS - 2:
            raise ConfigError(
                f"timerRollWindowSlot is {self.timer_roll_window_slot}: it must be from 3 to "
                f"{TIMER_WHEEL_SLOTS - 2}, what the wheel has room for"
            )
        if "," in self.store_path_commit_log:
            raise ConfigError(
                f"storePathCommitLog is {self.store_path_commit_log!r}: one directory is supported, not several "
                "separated by commas; put them together by LVM or RAID, or run a broker a disk"
            )
        self.delay_levels_ms()

    def _check_replicas(self) -> None:
        if self.min_in_sync_replicas > self.in_sync_replicas:
            raise ConfigError(
                f"minInSyncReplicas is {self.min_in_sync_replicas}, above inSyncReplicas, which is {self.in_sync_replicas}"
            )
        if self.in_sync_replicas > self.total_replicas > 1:
            raise ConfigError(
                f"inSyncReplicas is {self.in_sync_replicas}, but totalReplicas says that there are {self.total_replicas}: no "
                "message would ever have as many copies"
            )
        if self.ha_shared_key and len(self.ha_shared_key) < HA_KEY_CHARS_MIN:
            raise ConfigError(
                f"haSharedKey has {len(self.ha_shared_key)} characters, {HA_KEY_CHARS_MIN} at least are needed: take random ones"
            )
        if self.ha_allowed_hosts:
            try:
                parse_networks(self.ha_allowed_hosts)
            except ValueError as error:
                raise ConfigError(
                    f"haAllowedHosts is {self.ha_allowed_hosts!r}: {error}; expected addresses and networks as in "
                    "10.0.0.2,10.0.1.0/24"
                ) from None
        if bool(self.ha_tls_cert_path) != bool(self.ha_tls_key_path):
            raise ConfigError(
                f"haTlsCertPath is {self.ha_tls_cert_path!r} and haTlsKeyPath {self.ha_tls_key_path!r}: set both, or neither"
            )
        if self.ha_tls_trust_cert_path and not self.ha_tls_cert_path:
            raise ConfigError(
                "haTlsTrustCertPath says whose certificates are good at the HA port, but haTlsCertPath is empty, so that it has no "
                "TLS: set it, and haTlsKeyPath"
            )
        if self.ha_listen_port > 65_535:
            raise ConfigError(f"haListenPort is {self.ha_listen_port}: it must be from 0 to 65535")
        if self.ha_transfer_batch_size > HA_FRAME_BYTES_MAX:
            raise ConfigError(
                f"haTransferBatchSize is {self.ha_transfer_batch_size}: it must be at most {HA_FRAME_BYTES_MAX}, what a "
                "slave of RocketMQ has room for"
            )
        if self.ha_master_address:
            split_address(self.ha_master_address, "haMasterAddress")

    @property
    def dispatches_lmqs(self) -> bool:
        """Whether messages may be read from LMQs, too (enableLmq and enableMultiDispatch)."""
        return self.enable_lmq and self.enable_multi_dispatch

    @property
    def is_sync_flush(self) -> bool:
        """Whether a message is answered when the disk has it (flushDiskType=SYNC_FLUSH)."""
        return self.flush_disk_type is FlushDiskType.SYNC_FLUSH

    @property
    def proves_ha_peers(self) -> bool:
        """Whether a connection at the HA port has shown a key or a certificate before its first frame."""
        return bool(self.ha_shared_key or self.ha_tls_trust_cert_path)

    @property
    def commit_log_dir(self) -> str:
        """The directory of the log's segments."""
        return self.store_path_commit_log or os.path.join(self.store_path_root_dir, "commitlog")

    def path(self, *parts: str) -> str:
        """A path below the store's root."""
        return os.path.join(self.store_path_root_dir, *parts)

    @property
    def index_file_bytes(self) -> int:
        """The size of an index file: header, slots, entries."""
        return 40 + self.max_hash_slot_num * 4 + self.max_index_num * 20

    @property
    def file_sizes(self) -> tuple[int, int, int, int]:
        """Bytes of a file of the log, of a queue, of a batch queue, of the index."""
        return (
            self.mapped_file_size_commit_log,
            self.mapped_file_size_consume_queue,
            self.mapper_file_size_batch_consume_queue,
            self.index_file_bytes,
        )

    def memory_share_bytes(self) -> int:
        """Number of the log's newest bytes that count as "in memory" (accessMessageInMemoryMaxRatio)."""
        memory = self.memory_bytes
        if not memory:
            try:
                memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
            except (ValueError, OSError):
                memory = _ASSUMED_MEMORY_BYTES
        return memory * self.access_message_in_memory_max_ratio // 100

    def delay_levels_ms(self) -> tuple[int, ...]:
        """Delay of level 1, 2, ... in ms. Raises ConfigError for an unreadable level."""
        delays = []
        for text in self.message_delay_level.split():
            match = _DELAY_LEVEL.match(text)
            if match is None:
                raise ConfigError(
                    f"messageDelayLevel is {self.message_delay_level!r}: {text!r} is not a number followed by "
                    "s, m, h or d"
                )
            delays.append(int(match[1]) * _DELAY_UNIT_MS[match[2]])
        return tuple(delays)


_POSITIVE = (
    "max_hash_slot_num", "max_index_num", "max_message_size", "ha_max_time_slave_not_catchup", "mapped_file_size_consume_queue",
    "mapper_file_size_batch_consume_queue", "max_msgs_num_batch", "default_query_max_num", "sync_flush_timeout",
    "flush_interval_commit_log", "flush_interval_consume_queue", "clean_resource_interval",
    "delete_file_batch_max", "max_transfer_count_on_message_in_memory", "max_transfer_bytes_on_message_in_memory",
    "max_transfer_count_on_message_in_disk", "max_transfer_bytes_on_message_in_disk", "max_filter_message_size",
    "mapped_file_size_consume_queue_ext", "commit_log_reserve_bytes", "timer_precision_ms", "timer_max_delay_sec", "timer_flush_interval_ms",
    "timer_congest_num_each_slot", "ha_send_heartbeat_interval", "ha_housekeeping_interval", "ha_transfer_batch_size",
    "ha_max_gap_not_in_sync", "slave_timeout", "total_replicas", "in_sync_replicas",
    "min_in_sync_replicas",
)  # fmt: skip
_NOT_NEGATIVE = (
    "flush_commit_log_least_pages", "flush_commit_log_thorough_interval",
    "flush_consume_queue_thorough_interval", "file_reserved_time", "memory_bytes", "mapped_queue_files_max",
    "hot_read_bytes", "ha_listen_port",
)  # fmt: skip


def rocketmq_key(field_name: str) -> str:
    """The spelling of a field in a properties file."""
    head, *tail = field_name.split("_")
    return head + "".join("CRC" if part == "crc" else part.capitalize() for part in tail)
