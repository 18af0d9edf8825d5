"""Repairs a store that no broker has open: writes everything again that can be derived from the log.

It is a start with `truncateCorruptLog` and `checkQueuesOnStart`: damaged bytes of the log are skipped and stored in
`damaged/`, every queue entry is compared with the log, indexes are rebuilt.
"""

from __future__ import annotations

import asyncio
import dataclasses

from aerobee.clock import SystemClock
from aerobee.store.files.config import StoreConfig
from aerobee.store.files.disk import RealDisk
from aerobee.store.message_store import MessageStore


def repair(config: StoreConfig) -> list[str]:
    """Repair, close cleanly, and return the repairs as sentences. Raises StoreLocked, StoreError, ConfigError."""
    changed = dataclasses.replace(config, truncate_corrupt_log=True, check_queues_on_start=True)
    store = MessageStore(changed, disk=RealDisk(), clock=SystemClock())
    report = store.load()
    asyncio.run(store.stop())
    return [report.summary(), *report.notes]
