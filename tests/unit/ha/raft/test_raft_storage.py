"""The directory of a Raft node: what was saved is read again, and what is damaged is refused with a sentence."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable

import pytest

from aerobee.errors import StoreError, StoreFull, StoreLocked, StoreNotWritable
from aerobee.ha.raft import layout
from aerobee.ha.raft.entry import Entry, EntryKind, HardState, Membership, Snapshot
from aerobee.ha.raft.log import Recovered
from aerobee.ha.raft.storage import RaftFiles
from aerobee.simulation.simulated_disk import PowerCut, SimulatedDisk
from aerobee.store.files.disk import RealDisk

MEMBERS = Membership(("a", "b", "c"))
FILE_BYTES = 1024


def command(index: int, term: int = 2, data: bytes = b"") -> Entry:
    return Entry(index, term, EntryKind.COMMAND, data or b"command %d of term %d" % (index, term) * 3)


def files_on(disk: SimulatedDisk) -> RaftFiles:
    return RaftFiles("/raft", disk=disk, file_bytes=FILE_BYTES, entry_bytes_max=400)


def started(disk: SimulatedDisk) -> RaftFiles:
    files = files_on(disk)
    assert files.open().is_new
    files.initialize(MEMBERS)
    files.save_hard_state(HardState(9, "b"))
    return files


def reopened(disk: SimulatedDisk) -> tuple[RaftFiles, Recovered]:
    disk.crash()
    files = files_on(disk)
    return files, files.open()


def test_what_was_saved_is_read_again(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = str(tmp_path_factory.mktemp("raft") / "deep" / "er")
    files = RaftFiles(directory, disk=RealDisk(), file_bytes=FILE_BYTES, entry_bytes_max=400)
    assert files.open() == Recovered(HardState(), None, ())
    first = files.initialize(MEMBERS)
    assert first.entries[0].kind is EntryKind.MEMBERSHIP
    entries = [command(index) for index in range(2, 60)]
    files.save_hard_state(HardState(3, "b"))
    files.append(entries[:20])
    files.append(entries[20:])
    files.close()
    files = RaftFiles(directory, disk=RealDisk(), file_bytes=FILE_BYTES, entry_bytes_max=400)
    recovered = files.open()
    assert recovered.hard_state == HardState(3, "b")
    assert recovered.entries == (*first.entries, *entries)
    files.append([command(60)])
    files.close()
    files = RaftFiles(directory, disk=RealDisk(), file_bytes=FILE_BYTES, entry_bytes_max=400)
    assert files.open().entries[-1] == command(60)
    files.close()


def test_an_entry_puts_aside_what_had_its_index_and_what_came_behind() -> None:
    disk = SimulatedDisk(random.Random(1))
    files = started(disk)
    files.append([command(index) for index in range(2, 30)])
    files.append([command(20, 3), command(21, 3)])
    files.append([command(5, 4)])
    _, recovered = reopened(disk)
    assert [(entry.index, entry.term) for entry in recovered.entries] == [
        (1, 1),
        (2, 2),
        (3, 2),
        (4, 2),
        (5, 4),
    ]


def test_files_that_a_snapshot_covers_go_and_the_rest_is_read_again() -> None:
    disk = SimulatedDisk(random.Random(1))
    files = started(disk)
    files.append([command(index) for index in range(2, 40)])
    before = len(disk.list_dir("/raft"))
    files.save_snapshot(Snapshot(30, 2, MEMBERS, b"state"))
    assert len(disk.list_dir("/raft")) < before
    files.append([command(40)])
    files, recovered = reopened(disk)
    assert recovered.snapshot == Snapshot(30, 2, MEMBERS, b"state")
    assert recovered.entries == tuple(command(index) for index in range(31, 41))
    files.save_snapshot(Snapshot(40, 2, MEMBERS, b"later"))
    _, recovered = reopened(disk)
    assert recovered.entries == ()


@pytest.mark.parametrize("last", [5, 29, 31])
def test_a_snapshot_that_the_log_does_not_lead_to_replaces_it(last: int) -> None:
    disk = SimulatedDisk(random.Random(1))
    files = started(disk)
    files.append([command(index) for index in range(2, last + 1)])
    snapshot = Snapshot(30, 7, MEMBERS, b"of another leader")
    files.save_snapshot(snapshot)
    files.append([command(31, 7)])
    _, recovered = reopened(disk)
    assert (recovered.snapshot, recovered.entries) == (snapshot, (command(31, 7),))


def history(files: RaftFiles) -> list[tuple[Callable[[], object], Recovered]]:
    """Steps, each with what the directory holds after it."""
    first = Entry(1, 1, EntryKind.MEMBERSHIP, MEMBERS.encode())
    batch = tuple(command(index) for index in range(2, 25))
    other = tuple(command(index, 3) for index in range(10, 14))
    snapshot = Snapshot(11, 3, MEMBERS, b"mine")
    installed = Snapshot(50, 4, MEMBERS, b"the leader's")
    vote = HardState(5, "b")
    return [
        (lambda: files.save_hard_state(HardState(5)), Recovered(HardState(5), None, (first,))),
        (lambda: files.append(batch), Recovered(HardState(5), None, (first, *batch))),
        (lambda: files.save_hard_state(vote), Recovered(vote, None, (first, *batch))),
        (lambda: files.append(other), Recovered(vote, None, (first, *batch[:8], *other))),
        (lambda: files.save_snapshot(snapshot), Recovered(vote, snapshot, other[2:])),
        (lambda: files.append((command(14, 4),)), Recovered(vote, snapshot, (*other[2:], command(14, 4)))),
        (lambda: files.save_snapshot(installed), Recovered(vote, installed, ())),
        (lambda: files.append((command(51, 5),)), Recovered(vote, installed, (command(51, 5),))),
    ]


def is_between(recovered: Recovered, before: Recovered, after: Recovered) -> bool:
    """What a crash inside one step may leave: the state before, after, or with some of the step's entries."""
    if recovered in (before, after):
        return True
    if (recovered.hard_state, recovered.snapshot) != (before.hard_state, before.snapshot):
        return False
    count = len(recovered.entries)
    # A batch of which a part came: the end of it is cut off, and what it replaces stays or goes with its first entry.
    return any(
        recovered.entries == after.entries[:count] or recovered.entries == before.entries[:cut]
        for cut in range(len(before.entries) + 1)
    )


@pytest.mark.parametrize("seed", range(12))
def test_power_lost_at_any_call_keeps_what_was_answered(seed: int) -> None:
    calls = 0
    while True:
        disk = SimulatedDisk(random.Random(seed * 1000 + calls))
        files = files_on(disk)
        files.open()
        files.initialize(MEMBERS)
        before = Recovered(HardState(1), None, (Entry(1, 1, EntryKind.MEMBERSHIP, MEMBERS.encode()),))
        disk.cut_power_at(calls)
        try:
            for step, after in history(files):
                step()
                before = after
        except PowerCut:
            pass
        else:
            break
        disk.power_loss()
        files = files_on(disk)
        recovered = files.open()
        assert is_between(recovered, before, after), (
            f"at call {calls}: {recovered} is neither {before} nor {after}"
        )
        # It continues from there, and the next start finds that too.
        last = recovered.entries[-1].index if recovered.entries else (recovered.snapshot or before.snapshot)
        index = last if isinstance(last, int) else last.index if last else 1
        files.save_hard_state(HardState(9))
        files.append([command(index + 1, 5)])
        assert reopened(disk)[1].entries[-1] == command(index + 1, 5)
        calls += 1
    assert calls > 30


def test_power_lost_while_it_starts_for_the_first_time_leaves_a_new_directory_or_a_member() -> None:
    for calls in range(60):
        for seed in range(10):
            disk = SimulatedDisk(random.Random(seed))
            disk.cut_power_at(calls)
            try:
                files = files_on(disk)
                files.open()
                files.initialize(MEMBERS)
            except PowerCut:
                disk.power_loss()
            else:
                disk.cut_power_at(-1)
                disk.crash()
            files = files_on(disk)
            recovered = files.open()
            if recovered.is_new:
                recovered = files.initialize(MEMBERS)
            assert recovered.entries[0].kind is EntryKind.MEMBERSHIP


def test_a_flipped_bit_is_refused_or_changes_nothing() -> None:
    disk = SimulatedDisk(random.Random(1))
    files = started(disk)
    files.append([command(index) for index in range(2, 9)])
    files.append([command(9, data=bytes(range(1, 200)))])
    files.save_snapshot(Snapshot(4, 2, MEMBERS, b"state"))
    expected = reopened(disk)[1]
    complaints: list[tuple[str, str]] = []
    for path in disk.paths():
        if path.endswith("lock"):
            continue
        size = len(disk.content(path))
        used = len(disk.content(path).rstrip(b"\0")) if "log-" in path else size
        for offset in range(used):
            disk.flip_bit(path, offset, offset % 8)
            try:
                recovered = reopened(disk)[1]
            except StoreError as error:
                complaints.append((path, str(error)))
            else:
                # Zeros between two records, which nothing reads.
                assert recovered == expected, f"{path} byte {offset} changed what is read"
            disk.flip_bit(path, offset, offset % 8)
    assert len(complaints) > 500
    for path, complaint in complaints:
        assert path in complaint or "log-" in complaint
        assert "add it again as a new member" in complaint


def test_a_bad_record_with_good_ones_behind_it_is_named() -> None:
    disk = SimulatedDisk(random.Random(1))
    files = started(disk)
    files.append([command(2)])
    files.append([command(3)])
    path = "/raft/log-0000000001"
    offset = disk.content(path).find(b"command 2")
    disk.flip_bit(path, offset)
    with pytest.raises(
        StoreError, match=r"/raft/log-0000000001, byte \d+: a record behind it was written when"
    ) as e:
        reopened(disk)
    assert e.value.path == path
    assert e.value.offset < offset


def test_a_lost_sector_of_the_last_append_is_cut_and_of_an_earlier_one_refused() -> None:
    disk = SimulatedDisk(random.Random(1))
    files = started(disk)
    path = "/raft/log-0000000001"
    files.append([command(2, data=bytes(range(1, 256)))])
    files.append([command(3, data=bytes(range(1, 256)) + bytes(range(1, 140)))])
    inode = disk._names[path]
    inode.data[512:1024] = bytes(512)  # the sector never came, the file before it did
    _, recovered = reopened(disk)
    assert [entry.index for entry in recovered.entries] == [1, 2]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("vote", "it is missing, and log or snapshot are there"),
        ("log-0000000001", "it ends at entry 0, and the log begins behind"),
        ("log-0000000002", "it is missing, and later ones are there"),
    ],
)
def test_a_missing_file_is_refused(name: str, reason: str) -> None:
    disk = SimulatedDisk(random.Random(1))
    files = started(disk)
    files.append([command(index) for index in range(2, 60)])
    disk.remove(f"/raft/{name}")
    with pytest.raises(StoreError, match=reason):
        reopened(disk)


def test_a_missing_snapshot_is_refused() -> None:
    disk = SimulatedDisk(random.Random(1))
    files = started(disk)
    files.append([command(index) for index in range(2, 60)])
    files.save_snapshot(Snapshot(50, 2, MEMBERS, b"state"))
    disk.remove("/raft/snapshot")
    with pytest.raises(StoreError, match=r"snapshot: it ends at entry 0, and the log begins behind"):
        reopened(disk)


def test_a_vote_from_a_backup_is_refused() -> None:
    disk = SimulatedDisk(random.Random(1))
    files = started(disk)
    old = disk.content("/raft/vote")
    files.save_hard_state(HardState(12, "a"))
    files.append([command(2, 12)])
    disk.replace_file("/raft/vote", old)
    with pytest.raises(StoreError, match="its term is 9, and the log has entries of 12"):
        reopened(disk)


def test_after_a_failed_sync_nothing_more_is_taken() -> None:
    disk = SimulatedDisk(random.Random(1))
    files = started(disk)
    disk.fail = lambda call, path: errno.EIO if call == "sync" else 0
    with pytest.raises(StoreError, match=r"the log in /raft could not be read or written"):
        files.append([command(2)])
    disk.fail = lambda call, path: 0
    with pytest.raises(StoreNotWritable, match="restart this controller"):
        files.save_hard_state(HardState(10))
    files, _ = reopened(disk)
    files.save_hard_state(HardState(10))


def test_a_full_disk_is_said() -> None:
    disk = SimulatedDisk(random.Random(1), total_bytes=FILE_BYTES * 2)
    files = started(disk)
    with pytest.raises(StoreFull, match="no disk space for the log"):
        files.append([command(index) for index in range(2, 200)])


def test_a_directory_has_one_owner() -> None:
    disk = SimulatedDisk(random.Random(1))
    files = started(disk)
    with pytest.raises(StoreLocked, match="in use by another controller"):
        files_on(disk).open()
    files.close()
    files_on(disk).open()


def test_a_record_larger_than_the_configured_file_still_fits() -> None:
    disk = SimulatedDisk(random.Random(1))
    files = RaftFiles("/raft", disk=disk, file_bytes=1, entry_bytes_max=5000)
    files.open()
    files.initialize(MEMBERS)
    files.save_hard_state(HardState(2))
    files.append([command(2, data=b"x" * 5000), command(3, data=b"y" * 5000)])
    disk.crash()
    files = RaftFiles("/raft", disk=disk, file_bytes=1, entry_bytes_max=5000)
    assert [len(entry.data) for entry in files.open().entries[1:]] == [5000, 5000]


def test_heads_of_records_never_cross_a_sector() -> None:
    for size in range(1, 100):
        record = layout.encode_record(command(1, data=bytes(size)), 32)
        assert len(record) % layout.ALIGNMENT == 0
    assert layout.FILE_HEAD.size % layout.ALIGNMENT == 0
    assert layout.SECTOR_BYTES % layout.ALIGNMENT == 0


@pytest.mark.parametrize("size", [0, 5, 65_536, 65_537, 200_000])
@pytest.mark.parametrize("start", [0, 3, 70_000])
def test_zeros_that_end_a_file_are_found_in_any_size(size: int, start: int) -> None:
    for last in {each for each in (-1, 2, 69_999, 70_000, 131_072, size - 1) if each < size}:
        data = bytearray(size)
        if last >= 0:
            data[last] = 1
        assert layout.zeros_from(data, min(start, size)) == max(min(start, size), last + 1)
