"""Report of a store's start-up: findings, actions, and their text."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

_logger = logging.getLogger(__name__)
NOTES_MAX = 1_000  # sentences about single records: a log may hold millions of one kind


@dataclass(slots=True)
class RecoveryReport:
    """Findings and actions of load(). `notes` are sentences for the log, naming file and offset."""

    was_clean: bool
    log_min_offset: int = 0
    log_end: int = 0
    scanned_from: int = 0
    records_scanned: int = 0
    queue_entries_cut: int = 0
    queue_entries_added: int = 0
    queue_entries_mended: int = 0
    index_files_rebuilt: int = 0
    bytes_cut: int = 0  # bytes that were not zero behind the end of the log
    last_store_timestamp: int = 0
    last_record_offset: int = -1
    notes: list[str] = field(default_factory=list)

    def summary(self) -> str:
        """One line for the log."""
        end = "clean stop" if self.was_clean else "crash"
        return (
            f"opened after a {end}: log {self.log_min_offset}..{self.log_end}, {self.records_scanned} records "
            f"scanned from {self.scanned_from}, {self.bytes_cut} bytes cut; queue entries: "
            f"{self.queue_entries_cut} cut, {self.queue_entries_added} added, {self.queue_entries_mended} mended"
        )

    def tell(self, directory: str) -> None:
        """Write it to the log."""
        for note in self.notes:
            _logger.warning("%s: %s", directory, note)
        _logger.info("%s: %s", directory, self.summary())
