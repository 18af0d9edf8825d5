"""Floor 1: the store. Formats of RocketMQ's store directory and their input and output."""

from aerobee.store.config import BrokerRole, FlushDiskType, StoreConfig
from aerobee.store.disk import Disk, RealDisk
from aerobee.store.message_store import MessageStore
from aerobee.store.recovery_report import RecoveryReport
from aerobee.store.stored_message import AppendResult, GetResult, GetStatus, QueryResult, StoredMessage

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
