"""Python's collector of cycles in a process with tables of hundreds of thousands of objects.

A full collection looks at every object that may be part of a cycle, and nothing else runs meanwhile: 0.4 s where 100,000 groups
and topics are measured. Tables that live long are no garbage, so they are taken out of its sight (gc.freeze) as they grow. That
takes whatever else is there at that moment with them, garbage in cycles too, which is never freed then: so it is done only when
the tables have grown by a quarter, which bounds how often.

Aerobee's commands call own_process() once: in processes of applications, and in those that run tests, nothing is changed.
"""

from __future__ import annotations

import gc

# New objects before it looks for cycles. Python's own number, 700, takes a tenth of a start's CPU: hardly anything that is
# loaded becomes garbage.
NEW_OBJECTS_MAX = 10_000
# Collections of the newest objects before those that survived one are looked at again: with Python's 10 that is 40 ms while a
# table grows, with 3 it is 15.
YOUNG_COLLECTIONS_MAX = 3
GROWTH_MIN = 5_000  # things more, each of some objects, before they are taken out of its sight

_is_own = False
_hidden: dict[str, int] = {}  # of each table, how many things it had


def own_process() -> None:
    """This process runs nothing but ours: set when the collector looks, and let hide_grown() do its work."""
    global _is_own
    _is_own = True
    gc.set_threshold(NEW_OBJECTS_MAX, YOUNG_COLLECTIONS_MAX, gc.get_threshold()[2])


def hide_grown(table: str, count: int) -> bool:
    """`table` has `count` things that live long: hide them when they are many more than last time. Returns whether it was done."""
    known = _hidden.get(table, 0)
    if not _is_own or count < known + max(GROWTH_MIN, known // 4):
        return False
    gc.freeze()
    _hidden[table] = count
    return True
