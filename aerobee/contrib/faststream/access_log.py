"""FastStream's access log with the columns topic, group and message id."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger

MESSAGE_ID_CHARS = 32


class AccessLogColumns(DefaultLoggerStorage):
    """Widths of the columns, by the subscribers that are registered."""

    def __init__(self) -> None:
        super().__init__()
        self._topic_chars = self._group_chars = 4
        self.logger_log_level = logging.INFO

    def set_level(self, level: int) -> None:
        """Level of the logger."""
        self.logger_log_level = level

    def register_subscriber(self, params: dict[str, Any]) -> None:
        """Widen the columns for the topic and group of a subscriber."""
        self._topic_chars = max(self._topic_chars, len(params.get("topic", "")))
        self._group_chars = max(self._group_chars, len(params.get("group", "")))

    def get_logger(self, *, context: Any) -> Any:
        """The logger `faststream.access.aerobee`."""
        logger = self._get_logger_ref()
        if not logger:
            logger = get_broker_logger(
                name="aerobee",
                default_context={"topic": "", "group": ""},
                message_id_ln=MESSAGE_ID_CHARS,
                fmt=(
                    "%(asctime)s %(levelname)-8s - "
                    f"%(topic)-{self._topic_chars}s | %(group)-{self._group_chars}s | "
                    f"%(message_id)-{MESSAGE_ID_CHARS}s - %(message)s"
                ),
                context=context,
                log_level=self.logger_log_level,
            )
            self._logger_ref.add(logger)
        return logger


logger_state = partial(make_logger_state, default_storage_cls=AccessLogColumns)
