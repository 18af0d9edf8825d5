"""Messages sent to a store that both products serve."""

from __future__ import annotations

import dataclasses

QUEUES = 4


@dataclasses.dataclass(frozen=True)
class Sent:
    body: str
    key: str
    queue: int
    offset: int
    offset_msg_id: str
    msg_id: str
