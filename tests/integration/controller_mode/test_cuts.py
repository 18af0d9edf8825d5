"""A returning or deposed master of a controller group cuts what its group does not have."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aerobee.broker.assembly.broker import Broker
from aerobee.broker.replication.after_cut import AfterCut
from aerobee.broker.state.role import Role
from aerobee.ha.stream.epoch_file import EpochEntry
from aerobee.ha.stream.handshake import HandshakeReply
from aerobee.remoting.fastjson import loads
from aerobee.store.timer.timer_checkpoint import TimerCheckpoint
from tests.integration.controller_group import Group, same
from tests.integration.replica_pair import log_bytes
from tests.waiting import wait_until


async def test_a_returning_master_truncates_unreplicated_records(group: Group, tmp_path: Path) -> None:
    await group.begin()
    a = await group.start("a")
    b = await group.start("b")
    await group.sent(a, [b"common %d" % number for number in range(5)])
    await wait_until(lambda: group.members() == {1, 2}, timeout_s=60)
    await same(a, b)
    # Its slave takes no more, and is a member for as long as it may lag: this group waits for no replica.
    assert b.controllers is not None
    b.controllers.agent.mode._follower._is_following = False
    end = a.store.log.end
    reply = await group.send(a, b"only here")
    assert reply.code == 0
    assert a.store.log.end > end
    await a.kill()
    await wait_until(lambda: b.role.role is Role.MASTER, timeout_s=60)
    await group.sent(b, [b"second epoch"])
    again = await group.start("a")
    await same(again, b)
    assert list((tmp_path / "a" / "cut").iterdir())
    await wait_until(lambda: again.store.max_offset("t", 0) == 6, "confirmed messages are seen", timeout_s=60)


async def test_a_returning_master_without_shared_bytes_starts_empty(
    group: Group, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await group.begin()
    a = await group.start("a")
    b = await group.start("b")
    await wait_until(lambda: group.members() == {1, 2}, timeout_s=60)
    assert b.controllers is not None
    b.controllers.agent.mode._follower._is_following = False
    await group.sent(a, [b"only here %d" % number for number in range(3)])
    a.offsets.commit("g", "t", 0, 3)
    lost = log_bytes(a)
    assert b.store.log.end == 0
    await a.kill()
    await wait_until(lambda: b.role.role is Role.MASTER, timeout_s=60)
    await group.sent(b, [b"second epoch", b"and more"])
    again = await group.start("a")
    await same(again, b)
    kept = sorted((tmp_path / "a" / "cut").iterdir())
    assert b"".join(path.read_bytes() for path in kept) == lost
    assert f"its bytes from 0 up to {len(lost)} were cut off, with 3 queue entries" in caplog.text
    assert (tmp_path / "a" / "epochFileCheckpoint").read_bytes().endswith(b"\n2-0\n")
    await wait_until(lambda: again.store.max_offset("t", 0) == 2, "confirmed messages are seen", timeout_s=60)
    assert (again.offsets.query("g", "t", 0) or 0) <= 2
    await again.stop()
    once_more = await group.start("a")
    await same(once_more, b)
    await wait_until(lambda: once_more.store.max_offset("t", 0) == 2, timeout_s=60)


async def test_a_deposed_master_forgets_progress_in_what_is_cut_off(group: Group) -> None:
    """Its consumers were further than the log that is left: as the next master it would pass over what comes there."""
    await group.begin()
    a = await group.start("a")
    b = await group.start("b")
    await group.sent(a, [b"common %d" % number for number in range(5)])
    await wait_until(lambda: group.members() == {1, 2}, timeout_s=60)
    await same(a, b)
    assert a.controllers is not None
    assert b.controllers is not None
    b.controllers.agent.mode._follower._is_following = False
    assert (await group.send(a, b"only here")).code == 0
    a.offsets.commit("g", "t", 0, 6)
    await group.controllers[0]._masters.elect("broker-g", preferred_id=2)
    await wait_until(lambda: b.role.role is Role.MASTER, timeout_s=60)
    cut_end = b.store.log.end
    await wait_until(lambda: a.store.log.end == cut_end and a.role.role is Role.SLAVE, timeout_s=60)
    await wait_until(lambda: a.offsets.query("g", "t", 0) == 5, "the offset is within the log", timeout_s=60)
    assert a.controllers.agent.mode.confirm_offset <= cut_end
    await group.sent(b, [b"second epoch"])
    await same(a, b)
    await wait_until(lambda: group.members() == {1, 2}, "the slave may be elected", timeout_s=60)
    await group.controllers[0]._masters.elect("broker-g", preferred_id=1)
    await wait_until(lambda: a.role.role is Role.MASTER, timeout_s=60)
    assert a.offsets.query("g", "t", 0) == 5
    found = a.controllers.agent.mode.sync_state_set
    assert found is not None
    assert found.confirm_offset <= a.store.log.end


async def deposed(group: Group) -> tuple[Broker, Broker, int]:
    """A master whose last message has no copy, and whose group's offset is behind it; its slave, which leads now and has more;
    and where the log of the first is to be cut."""
    await group.begin()
    a = await group.start("a")
    b = await group.start("b")
    await group.sent(a, [b"common %d" % number for number in range(5)])
    await wait_until(lambda: group.members() == {1, 2}, timeout_s=60)
    await same(a, b)
    assert b.controllers is not None
    b.controllers.agent.mode._follower._is_following = False
    cut_end = a.store.log.end
    assert (await group.send(a, b"only here")).code == 0
    a.offsets.commit("g", "t", 0, 6)
    a.offsets.save()
    await group.controllers[0]._masters.elect("broker-g", preferred_id=2)
    await wait_until(lambda: b.role.role is Role.MASTER, timeout_s=60)
    await group.sent(b, [b"second epoch %d" % number for number in range(3)])
    return a, b, cut_end


async def test_a_kill_before_what_belongs_to_a_cut_is_done_leaves_it_to_the_next_start(
    group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(after_cut: AfterCut) -> None:
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(AfterCut, "_finish", never)
        a, b, cut_end = await deposed(group)
        await wait_until(lambda: a.store.pending_cut is not None, "the log is cut", timeout_s=60)
        assert a.store.pending_cut == a.store.log.end == cut_end < b.store.log.end
        a.offsets.commit("g", "t", 0, 6)  # as it was before the cut
        a.offsets.save()
        await a.kill()
    # Progress in the bytes that are gone: timers and transactions of the new epoch would be passed over.
    config = tmp_path / "a" / "config"
    ahead = TimerCheckpoint(read_time_ms=1 << 42, log_flushed=0, queue_offset=9, counter=77, scan_from=0)
    (config / "timercheck").write_bytes(ahead.encode())
    (config / "transactionSettled.json").write_bytes(b'{"settledOffset":%d}' % (1 << 40))
    (config / "actingDeliveries.json").write_bytes(b'{"sources":[%d]}' % (cut_end + 1))
    again = await group.start("a")
    await same(again, b)
    assert again.store.pending_cut is None
    assert not (config / "timercheck").exists() or (config / "timercheck").read_bytes() != ahead.encode()
    assert not (config / "transactionSettled.json").exists()
    assert again.offsets.query("g", "t", 0) == 5
    saved = loads((config / "consumerOffset.json").read_bytes())
    assert (saved["offsetTable"], saved["aerobeeLogEnd"]) == ({"t@g": {"0": 5}}, cut_end)


@pytest.mark.parametrize("error", [OSError(28, "no space"), RuntimeError("a fault")])
async def test_what_belongs_to_a_cut_is_tried_again_and_nothing_comes_before(
    group: Group, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    forget, ends = AfterCut.forget, []

    def refused_twice(after_cut: AfterCut, log_offset: int) -> None:
        ends.append(after_cut._store.log.end)
        if len(ends) < 3:
            raise error
        forget(after_cut, log_offset)

    monkeypatch.setattr(AfterCut, "forget", refused_twice)
    a, b, cut_end = await deposed(group)
    await same(a, b)
    assert ends == [cut_end] * 3
    assert a.store.pending_cut is None
    assert a.offsets.query("g", "t", 0) == 5
    assert caplog.text.count("trying again") >= 2


async def test_a_master_of_an_earlier_epoch_cuts_nothing(group: Group) -> None:
    """Whoever is at the address: what it lacks may have been confirmed in the epochs that it does not know."""
    await group.begin()
    a = await group.start("a")
    await group.sent(a, [b"1", b"2", b"3"])
    end = a.store.log.end

    async def old_master(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(16)
        writer.write(HandshakeReply(max_offset=end - 1, entries=(EpochEntry(1, 0),)).encode())
        await reader.read()
        writer.close()

    server = await asyncio.start_server(old_master, "127.0.0.1", 0)
    async with server:
        assert a.controllers is not None
        await a.controllers.agent.stop()
        port = server.sockets[0].getsockname()[1]
        a.replication.become_slave(f"127.0.0.1:{port}", 2, master_address="127.0.0.1:1")

        def trouble() -> str:
            following = a.replication.state().following
            return following.trouble if following is not None else ""

        await wait_until(lambda: "in epoch 1" in trouble(), timeout_s=60)
        assert a.store.log.end == end
        a.replication.become_slave("", 2)
