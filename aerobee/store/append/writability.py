"""Whether the store accepts messages, and the reason if not: it is closed, its disk is full or failed, or its broker is
a slave.

Invariants: after a write failure the store accepts nothing before a restart has read the actual content of the disk;
after a full disk it accepts messages as soon as there is space. Follows the RunningFlags of RocketMQ. Core.
"""

from __future__ import annotations

import logging

from aerobee.errors import StoreError, StoreFull, StoreNotWritable
from aerobee.store.files.config import BrokerRole, StoreConfig

_logger = logging.getLogger(__name__)


class Writability:
    """Writability of one store. Each append checks it; the part that detects a failure changes it."""

    def __init__(self, config: StoreConfig) -> None:
        """The store refuses messages before open()."""
        self._refusal: StoreError | None = StoreNotWritable("the store is not open yet")
        self._slave_refusal: StoreError | None = (
            StoreNotWritable("this broker is a slave: send to its master")
            if config.broker_role is BrokerRole.SLAVE
            else None
        )
        self._failure: StoreError | None = None
        # Whether a sender's message would be taken now. A plain attribute, set with the refusals: it is read with each burst.
        self.is_writable = False

    def check_writable(self) -> None:
        """Raise StoreNotWritable or StoreFull when no message can be taken now."""
        if (refusal := self._refusal or self._slave_refusal) is not None:
            raise refusal

    def check_open(self) -> None:
        """Raise StoreNotWritable or StoreFull when not even what a master sends can be taken."""
        if self._refusal is not None:
            raise self._refusal

    @property
    def is_sound(self) -> bool:
        """Whether the disk accepts writes, independent of the role: true at a slave with a healthy disk."""
        return self._refusal is None

    @property
    def reason(self) -> str:
        """Reason for refusing messages; empty when they are accepted."""
        return str(self._refusal or self._slave_refusal or "")

    @property
    def failure(self) -> StoreError | None:
        """The first failed write or sync, since which the content of the disk is unknown."""
        return self._failure

    def open(self) -> None:
        """Recovery is through: take messages from now on."""
        self._refusal = None
        self._changed()

    def close(self, why: str) -> None:
        """Take nothing from now on. A refusal that stands already says more and stays, but for that of a full disk."""
        if self._refusal is None or isinstance(self._refusal, StoreFull):
            self._refusal = StoreNotWritable(why)
            self._changed()

    def fail(self, failure: StoreError) -> None:
        """Take nothing any more, for good. The first failure is the one that is reported."""
        if self._failure is None:
            _logger.error("%s", failure)
            self._failure = failure
            self._refusal = StoreNotWritable(str(failure), path=failure.path, offset=failure.offset)
            self._changed()

    def refuse_messages(self, reason: str) -> None:
        """Take no messages but a master's raw ones, for this reason; "": take them. Overrides what brokerRole says."""
        self._slave_refusal = StoreNotWritable(reason) if reason else None
        self._changed()

    def note_disk(self, full: StoreFull | None) -> None:
        """Record the result of a check of the disk's space: `full` is the error when there is too little for more
        messages, else None.
        """
        if full is not None and self._refusal is None:
            self._refusal = full
            _logger.error("%s", full)
        elif full is None and isinstance(self._refusal, StoreFull):
            self._refusal = None
        self._changed()

    def _changed(self) -> None:
        self.is_writable = self._refusal is None and self._slave_refusal is None
