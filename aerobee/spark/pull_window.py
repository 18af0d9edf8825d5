"""The pulls of a range that are in flight, and the order in which their replies are passed on. No I/O.

Both ends of the range are known, so that several pulls can be concurrent: the range is divided into cells,
each of which is pulled sequentially to its end, because a broker may reply with fewer messages than
requested. Replies of a later cell wait until the earlier cells are complete; while more than
`waiting_bytes_max` wait, only the first cell is pulled. With a filter the broker decides where a pull ends,
so the range is one cell.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class Cell:
    """Offsets from `next_offset` to before `end` are not pulled yet. `bodies`: replies that are not passed on yet."""

    end: int
    next_offset: int
    is_asked: bool = False
    bodies: list[tuple[bytes, int]] = field(default_factory=list)


class PullWindow:
    """The pulls of one range."""

    def __init__(
        self, begin: int, end: int, *, cell_size: int, in_flight_max: int, waiting_bytes_max: int
    ) -> None:
        self.end = end
        self._planned = begin
        self._cell_size = cell_size
        self._in_flight_max = in_flight_max
        self._waiting_bytes_max = waiting_bytes_max
        self._waiting_bytes = 0
        self._cells: deque[Cell] = deque()

    @property
    def is_done(self) -> bool:
        """True when all pulls are sent, answered and passed on."""
        return not self._cells and self._planned >= self.end

    def asks(self) -> list[Cell]:
        """The cells to pull now, from their `next_offset` on. The caller must call answered() for each."""
        while len(self._cells) < self._in_flight_max and self._planned < self.end:
            end = min(self.end, self._planned + self._cell_size)
            self._cells.append(Cell(end, self._planned))
            self._planned = end
        asks = []
        for number, cell in enumerate(self._cells):
            may_wait = number == 0 or self._waiting_bytes < self._waiting_bytes_max
            if not cell.is_asked and cell.next_offset < cell.end and may_wait:
                cell.is_asked = True
                asks.append(cell)
        return asks

    def answered(self, cell: Cell, next_offset: int, body: bytes = b"", offset_delta: int = 0) -> None:
        """Add a reply; the cell continues at `next_offset`. `offset_delta` is added to the offsets in the
        records of `body`.
        """
        cell.is_asked = False
        cell.next_offset = min(max(cell.next_offset, next_offset), cell.end)
        if body:
            cell.bodies.append((body, offset_delta))
            self._waiting_bytes += len(body)

    def take(self) -> list[tuple[bytes, int]]:
        """Replies that can be passed on now, in the order of offsets, each with its offset_delta."""
        taken: list[tuple[bytes, int]] = []
        while self._cells:
            first = self._cells[0]
            taken.extend(first.bodies)
            first.bodies.clear()
            if first.is_asked or first.next_offset < first.end:
                break
            self._cells.popleft()
        self._waiting_bytes -= sum(len(body) for body, _ in taken)
        return taken
