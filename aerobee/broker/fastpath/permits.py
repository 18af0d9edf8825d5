"""Permissions that backends check before each burst: numbers in one flat buffer, updated when the role or the ack
policy changes.

    0 FENCE  0: messages may be appended here. Else the handlers refuse them with the reason
    1 HOLDS  1: senders that want to wait are answered when the append is safe (ack.py): on the disk, at the replicas
             2: and for those that do not wait, the handlers check again whether this broker may still answer

The native backend reads the buffer itself, before each turn, so that a broker that is fenced appends nothing more.
"""

from __future__ import annotations

from array import array

from aerobee.broker.admission.ack import AckPolicy
from aerobee.broker.state.role import RoleState

FENCE, HOLDS = 0, 1
_COUNT = 2


class Permits:
    """Updates the numbers from `role` and `ack`. `numbers` is never replaced."""

    def __init__(self, role: RoleState, ack: AckPolicy) -> None:
        self._role = role
        self._ack = ack
        self.numbers = open_permits()
        role.on_change(lambda _: self._changed())
        ack.on_change(self._changed)
        self._changed()

    def _changed(self) -> None:
        self.numbers[FENCE] = 0 if self._role.takes_writes else 1
        self.numbers[HOLDS] = (2 if self._ack.guards_answers else 1) if self._ack.holds else 0


def open_permits() -> array[int]:
    """Numbers that permit everything and defer no reply."""
    return array("q", bytes(8 * _COUNT))
