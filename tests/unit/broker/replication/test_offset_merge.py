"""What a slave makes of the offsets that its master tells."""

from __future__ import annotations

from aerobee.broker.replication.offset_merge import OffsetAt, OffsetMerge


class Table:
    """The slave's own offsets."""

    def __init__(self) -> None:
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.merge = OffsetMerge()

    def hear(self, offset: int, group: str = "g") -> list[int]:
        """Merge the master's table; return the commits that go to the master."""
        found = self.merge.merge(
            [OffsetAt("t", group, 0, offset)], lambda *key: self.offsets.get((key[1], key[0], key[2]))
        )
        for each in found.taken:
            self.offsets[each.topic, each.group, each.queue_id] = each.offset
        return [each.offset for each in found.given_back]

    def at(self, group: str = "g") -> int:
        return self.offsets["t", group, 0]


def test_it_follows_up_and_a_reset_down() -> None:
    table = Table()
    assert table.hear(5) == []
    assert table.hear(9) == []
    assert table.at() == 9
    table.hear(2)
    assert table.at() == 2


def test_a_master_that_was_away_takes_nothing_back() -> None:
    table = Table()
    table.hear(50)
    table.merge.master_lost()
    assert table.hear(40) == []  # its file was older than the crash: no consumer committed here meanwhile
    assert table.at() == 50
    table.hear(41)
    assert table.at() == 50
    table.hear(60)
    assert table.at() == 60


def test_what_was_committed_here_meanwhile_is_given_to_it() -> None:
    table = Table()
    table.hear(50)
    table.merge.master_lost()
    table.offsets["t", "g", 0] = 70
    assert table.hear(50) == [70]
    assert table.at() == 70
    assert table.hear(70) == []


def test_a_slave_that_began_anew_gives_nothing_back_for_it_knows_of_no_progress() -> None:
    table = Table()
    table.offsets["t", "g", 0] = 70
    assert table.hear(50) == []
    assert table.at() == 70


def test_the_brokers_own_progress_is_the_masters_whatever_it_was_here() -> None:
    table = Table()
    table.offsets["t", "CID_RMQ_SYS_TRANS", 0] = 70
    table.hear(50, "CID_RMQ_SYS_TRANS")
    assert table.at("CID_RMQ_SYS_TRANS") == 50


def merged(
    table: Table, master: dict[str, int], *, from_here: bool = True
) -> tuple[list[OffsetAt], list[OffsetAt]]:
    """What is given to a master with these offsets of groups, and what has to go here."""
    own = [(topic, group, queue_id, offset) for (topic, group, queue_id), offset in table.offsets.items()]
    found = table.merge.merge(
        [OffsetAt("t", group, 0, offset) for group, offset in master.items()],
        lambda *key: table.offsets.get((key[1], key[0], key[2])),
        own,
        own_count=len(own),
        is_from_here=lambda each: from_here,
    )
    for each in found.taken:
        table.offsets[each.topic, each.group, each.queue_id] = each.offset
    return found.given_back, found.removed


def test_a_group_that_the_master_never_saw_is_given_to_it() -> None:
    table = Table()
    table.offsets["t", "new", 0] = 30
    table.offsets["t", "CID_RMQ_SYS_TRANS", 0] = 3
    assert merged(table, {"g": 5}, from_here=False) == ([], [])
    table.merge.master_lost()
    assert merged(table, {"g": 5}) == ([OffsetAt("t", "new", 0, 30)], [])
    assert merged(table, {"g": 5, "new": 30}) == ([], [])


def test_what_the_master_had_and_has_no_more_goes() -> None:
    table = Table()
    assert merged(table, {"g": 5, "h": 6}) == ([], [])
    assert merged(table, {"g": 5}) == ([], [OffsetAt("t", "h", 0, 6)])


def test_a_commit_that_bypasses_the_master_is_kept() -> None:
    table = Table()
    assert merged(table, {"g": 5}) == ([], [])
    table.offsets["t", "new", 0] = 30
    assert merged(table, {"g": 6}) == ([], [])


def test_offsets_of_a_log_that_was_cut_are_the_masters() -> None:
    """A deposed master popped up to 4, and its check point was cut off: 4 here would skip a message at the next master."""
    merge = OffsetMerge()
    here = {("g", "T", 0): 2, ("mine", "T", 0): 7}
    merge.merge([OffsetAt("T", "g", 0, 2)], lambda *key: here.get(key))
    merge.master_lost()
    here["g", "T", 0] = 4
    own = [("T", "g", 0, 4), ("T", "mine", 0, 7)]
    found = merge.merge(
        [OffsetAt("T", "g", 0, 3)], lambda *key: here.get(key), own, own_count=2, counts_cut_off=True
    )
    assert found.taken == [OffsetAt("T", "g", 0, 3)]
    assert found.given_back == []
