"""A watch of pending requests that never fires."""

from __future__ import annotations


class NoWatch:
    def watch(self, topic: str, queue_id: int) -> None: ...

    def unwatch(self, topic: str, queue_id: int) -> None: ...
