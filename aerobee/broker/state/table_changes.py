"""Changes to an immutable table, which each change replaces as a whole: first in its file, then in memory.

    change(apply)   queued; the next write contains all queued changes; then memory has them, and each caller is
    notified write_soon()    memory has the change already; the file follows

Invariants: one write at a time, and the last write equals the memory; a reported change is durable; changes are
reported in the order of their requests. A failed write fails all changes that it contains, and memory does not change.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from aerobee.errors import AerobeeError, StoreError

log = logging.getLogger(__name__)

T = TypeVar("T", bound=tuple[object, ...])  # its parts are replaced, never changed
N = TypeVar("N")
N_contra = TypeVar("N_contra", contravariant=True)
Told = Callable[[AerobeeError | None], None]


class Table(Protocol[T, N_contra]):
    """The owner of the table."""

    def current(self) -> T:
        """The value in memory."""

    def sealed(self, value: T) -> T:
        """`value` as the next version of the table."""

    def take(self, value: T, notes: Sequence[N_contra]) -> None:
        """Have `value` in memory and tell the watchers; `notes` are those of the changes in it."""

    def write(self, value: T) -> None:
        """Write `value` to the file, blocking, in any thread. Raises StoreError."""


@dataclass(slots=True)
class _Change(Generic[T, N]):
    apply: Callable[[T], T]
    note: N
    told: Told

    def tell(self, error: AerobeeError | None) -> None:
        try:
            self.told(error)
        except Exception:
            log.exception("a callback for a change of a table failed")  # its own fault, not the others'


class TableChanges(Generic[T, N]):
    """Queued changes of one table. Belongs to the event loop. Without `run` a table has no file: changes are made
    immediately.
    """

    def __init__(
        self, table: Table[T, N], *, run: Callable[[Callable[[], None]], Awaitable[None]] | None, what: str
    ) -> None:
        """`run` runs blocking work off the event loop; `what` names the table in the log."""
        self._table = table
        self._run = run
        self._what = what
        self._queued: list[_Change[T, N]] = []
        self._is_dirty = False
        self._task: asyncio.Task[None] | None = None
        self.is_unsaved = False  # the disk did not take what memory has

    @property
    def queued_count(self) -> int:
        """Changes that no write holds yet."""
        return len(self._queued)

    def change_then(self, apply: Callable[[T], T], note: N, told: Told) -> None:
        """Make `apply(current value)` the value. `told` is called in the same event loop iteration as the change of
        memory: with None when the change is durable and in memory, else with the exception of apply or a StoreError,
        and nothing has changed.

        `apply` returns its argument when there is nothing to change; it may be called again on a newer value.
        """
        self._queued.append(_Change(apply, note, told))
        if self._run is None:
            self._take_without_file()
        else:
            self._begin()

    async def change(self, apply: Callable[[T], T], note: N) -> None:
        """The same, awaited. It continues when the caller is cancelled. Raises what apply raises, StoreError."""
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def tell(error: AerobeeError | None) -> None:
            if told.cancelled():
                return
            if error is None:
                told.set_result(None)
            else:
                told.set_exception(error)

        self.change_then(apply, note, tell)
        await told

    def write_soon(self) -> None:
        """Write what memory has. A failure is logged and kept for retry()."""
        if self._run is not None:
            self._is_dirty = True
            self._begin()

    def retry(self) -> None:
        """Write again what the disk did not take, if there is such a thing."""
        if self.is_unsaved:
            self.write_soon()

    async def settled(self) -> None:
        """Return when every requested change is written or refused."""
        while self._task is not None:
            await asyncio.wait((self._task,))

    def abandon(self) -> None:
        """Write nothing more, as after a kill."""
        self._run = None
        if self._task is not None:
            self._task.cancel()

    def _begin(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._write_all(), name=f"write-{self._what}")

    async def _write_all(self) -> None:
        try:
            while self._queued or self._is_dirty:
                await self._write_next()
        finally:
            self._task = None

    async def _write_next(self) -> None:
        run, table = self._run, self._table
        assert run is not None
        batch, self._queued = self._queued, []
        is_dirty, self._is_dirty = self._is_dirty, False
        before = table.current()
        value, changes = _applied(before, batch)
        wanted = value if value is before else table.sealed(value)
        if wanted is not before or is_dirty:
            try:
                await run(lambda: table.write(wanted))
            except StoreError as error:
                self._refused(error, changes, is_dirty=is_dirty)
                return
            except Exception as error:
                # An internal error: the callers that wait for this write must not wait for ever.
                log.exception("the %s could not be written", self._what)
                self._refused(
                    StoreError(f"the {self._what} could not be written: {error!r}"),
                    changes,
                    is_dirty=is_dirty,
                )
                return
            if self.is_unsaved:
                log.warning("the %s are written again", self._what)
            self.is_unsaved = False
        self._take(before, wanted, changes)

    def _refused(self, error: StoreError, changes: list[_Change[T, N]], *, is_dirty: bool) -> None:
        if is_dirty:
            if not self.is_unsaved:
                log.error("the %s live in memory only: %s; it is tried again", self._what, error)
            self.is_unsaved = True
        for change in changes:
            change.tell(error)

    def _take(self, before: T, value: T, changes: list[_Change[T, N]]) -> None:
        table = self._table
        if value is not before:
            now = table.current()
            if any(mine is not theirs for mine, theirs in zip(now, before, strict=True)):
                # Memory went ahead while the file was written; that has a separate write, which comes next.
                again, changes = _applied(now, changes)
                value = now if again is now else table.sealed(again)
                self._is_dirty = True
            table.take(value, [change.note for change in changes])
        for change in changes:
            change.tell(None)

    def _take_without_file(self) -> None:
        batch, self._queued = self._queued, []
        before = self._table.current()
        value, changes = _applied(before, batch)
        self._take(before, value if value is before else self._table.sealed(value), changes)


def _applied(value: T, changes: list[_Change[T, N]]) -> tuple[T, list[_Change[T, N]]]:
    """`value` with all changes that can be made, and these; the others get the reason."""
    made = []
    for change in changes:
        try:
            value = change.apply(value)
        except AerobeeError as error:
            change.tell(error)
        else:
            made.append(change)
    return value, made
