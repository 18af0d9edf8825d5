"""Layer 1: the store. Formats of RocketMQ's store directory and their input and output."""

from aerobee.store.files.config import BrokerRole, FlushDiskType, StoreConfig
from aerobee.store.files.disk import Disk, RealDisk
from aerobee.store.log.stored_message import AppendResult, GetResult, GetStatus, QueryResult, StoredMessage
from aerobee.store.message_store import MessageStore
from aerobee.store.recovery.recovery_report import RecoveryReport

__all__ = [
    "AppendResult",
    "BrokerRole",
    "Disk",
    "FlushDiskType",
    "GetResult",
    "GetStatus",
    "MessageStore",
    "QueryResult",
    "RealDisk",
    "RecoveryReport",
    "StoreConfig",
    "StoredMessage",
]
