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
    """everything that the broker keeps lies below it"""
    store_path_commit_log: str = ""
    """empty: <root>/commitlog"""
    mapped_file_size_commit_log: int = 1_073_741_824
    """bytes of a file of the log"""
    mapped_file_size_consume_queue: int = 6_000_000
    """bytes of a file of a queue, 20 for a message"""
    mapper_file_size_batch_consume_queue: int = 13_800_000
    """bytes of a file of a batch queue, 46 for a batch"""
    max_hash_slot_num: int = 5_000_000
    """slots of an index file"""
    max_index_num: int = 20_000_000
    """keys of an index file"""
    message_index_enable: bool = True
    """keys are written into the index; false: messages are not found by key"""
    max_message_size: int = 4_194_304
    """bytes of a body; a larger message is refused"""
    max_msgs_num_batch: int = 64
    """messages that a look-up by key returns at most"""
    default_query_max_num: int = 32
    """messages that a look-up by unique key returns at most"""

    broker_role: BrokerRole = BrokerRole.ASYNC_MASTER
    """ASYNC_MASTER answers by itself, SYNC_MASTER when a slave has the message, SLAVE copies brokerName's master"""
    # replication
    ha_shared_key: str = field(default="", repr=False)
    """shared key that brokers of a group prove to each other at the HA port; empty: none"""
    ha_allowed_hosts: str = ""
    """addresses and networks, commas between: slaves connect from these only; empty: controllers say from where, without
    them from anywhere"""
    ha_tls_cert_path: str = ""
    """PEM; the HA port and the connections to a master's speak TLS with it"""
    ha_tls_key_path: str = ""
    """its key, without a password"""
    ha_tls_trust_cert_path: str = ""
    """authorities; set: both sides ask each other for a certificate of theirs"""
    ha_listen_port: int = 0
    """port to which slaves connect; 0: one above listenPort, any port when that is 0"""
    ha_master_address: str = ""
    """host:port of the master's HA port; empty: use the NameServer's answer"""
    ha_send_heartbeat_interval: int = 5_000
    """without bytes to send"""
    ha_housekeeping_interval: int = 20_000
    """idle time after which a connection is closed"""
    ha_transfer_batch_size: int = 32_768
    """bytes of one frame"""
    ha_max_gap_not_in_sync: int = 268_435_456
    """bytes; a slave further behind does not count as in sync"""
    slave_timeout: int = 3_000
    """longest wait of a send for the replicas"""
    total_replicas: int = 1
    """brokers of the group that are meant to be there, this one too"""
    in_sync_replicas: int = 1
    """copies that a SYNC_MASTER waits for, its own included"""
    min_in_sync_replicas: int = 1
    """fewer, with enableAutoInSyncReplicas, refuse messages"""
    enable_auto_in_sync_replicas: bool = False
    """with enableSlaveActingMaster: wait for those that are in sync"""
    all_ack_in_sync_state_set: bool = False
    """controller mode: sends wait for every member of the sync state set"""
    async_learner: bool = False
    """controller mode: this broker follows, and never becomes master"""
    ha_max_time_slave_not_catchup: int = 15_000
    """controller mode; a slave that lags for longer leaves the sync state set"""
    store_path_epoch_file: str = ""
    """controller mode; empty: epochFileCheckpoint below storePathRootDir"""
    store_path_broker_identity: str = ""
    """controller mode; empty: brokerIdentity below storePathRootDir"""
    sync_from_last_file: bool = False
    """an empty slave takes the newest log file only, as RocketMQ's do"""
    flush_disk_type: FlushDiskType = FlushDiskType.ASYNC_FLUSH
    """ASYNC_FLUSH answers before the disk has the message, SYNC_FLUSH after"""
    sync_flush_timeout: int = 5_000
    """ms that a send waits for the disk or for replicas, then FLUSH_DISK_TIMEOUT or FLUSH_SLAVE_TIMEOUT"""
    flush_interval_commit_log: int = 500
    """ms from one flush of the log to the next with ASYNC_FLUSH"""
    flush_commit_log_least_pages: int = 4
    """pages of 4 KiB that such a flush waits for"""
    flush_commit_log_thorough_interval: int = 10_000
    """ms after which it flushes fewer, too"""
    flush_interval_consume_queue: int = 1_000
    """ms from one flush of the queues to the next"""
    flush_consume_queue_thorough_interval: int = 60_000
    """ms after which every queue is flushed, however little is new"""

    enable_lmq: bool = False
    """LMQs, with enableMultiDispatch"""
    enable_multi_dispatch: bool = False
    """a message enters the LMQs that its property INNER_MULTI_DISPATCH names, too"""
    max_lmq_consume_queue_num: int = 20_000
    """LMQs of a broker"""
    enable_consume_queue_ext: bool = False
    """entries with store time and filter bits"""
    mapped_file_size_consume_queue_ext: int = 48 * 1024 * 1024
    """bytes of a file of queues' extensions, with enableConsumeQueueExt"""

    clean_resource_interval: int = 10_000
    """ms between two looks for files to delete"""
    delete_when: str = "04"
    """local hours, separated by ;"""
    file_reserved_time: int = 72
    """hours"""
    delete_file_batch_max: int = 10
    """files of the log that one look deletes"""
    disk_max_used_space_ratio: int = 75
    """percent of the disk from which old files go before deleteWhen"""
    disk_space_clean_forcibly_ratio: int = 85
    """percent from which files go although they are younger than fileReservedTime"""
    disk_space_warning_level_ratio: int = 90
    """percent from which no message is taken any more"""
    clean_file_forcibly_enable: bool = True
    """false: files younger than fileReservedTime stay even on a full disk"""

    access_message_in_memory_max_ratio: int = 40
    """percent of memory whose worth of the log's end counts as hot: older reads go to a slave"""
    max_transfer_count_on_message_in_memory: int = 1_024
    """of one reply, at most what the client requests"""
    max_transfer_bytes_on_message_in_memory: int = 262_144
    """bytes of one pull's answer from there"""
    max_transfer_count_on_message_in_disk: int = 1_024
    """the same for data beyond the memory share"""
    max_transfer_bytes_on_message_in_disk: int = 65_536
    """bytes of one pull's answer from what is older"""
    max_filter_message_size: int = 16_000
    """bytes of queue entries that one read looks at"""

    check_crc_on_recover: bool = field(default=True, metadata={"key": "checkCRCOnRecover"})
    """a start after a crash compares each body with its checksum"""
    offset_check_in_slave: bool = False
    """a slave corrects offsets beyond its own log, which may be behind the master's"""
    message_delay_level: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    """the waits of delay levels 1, 2, ..., blank separated: s, m, h, d"""

    timer_wheel_enable: bool = True
    """messages at any time (TIMER_DELIVER_MS and its like)"""
    timer_precision_ms: int = 1_000
    """time span of one slot of the wheel"""
    timer_max_delay_sec: int = 259_200
    """a message further off is refused"""
    timer_roll_window_slot: int = 172_800
    """a message further off is stored again on the way"""
    timer_flush_interval_ms: int = 1_000
    """between checkpoints of the timer"""
    append_topic_for_timer_delete_key: bool = False
    """a recall names topic and id in the log, not the id alone"""
    timer_congest_num_each_slot: int = 2_147_483_647
    """a slot with more messages refuses further ones, at first some"""
    mapped_file_size_timer_log: int = 104_857_600
    """bytes of a file of the timer log"""

    memory_bytes: int = 0
    """physical memory assumed by the 40 % rule; 0: ask the machine"""
    commit_log_reserve_bytes: int = 8_388_608
    """disk space taken in advance, so that a full disk is an error"""
    mapped_queue_files_max: int = 0
    """queue files open at a time; 0: from the process's file limit"""
    hot_read_bytes: int = 67_108_864
    """the log's newest bytes, read without asking whether they are in memory"""
    truncate_corrupt_log: bool = False
    """start although acknowledged records are damaged, leaving those out"""
    check_queues_on_start: bool = False
    """compare every queue entry with the log, which reads all of it"""

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
