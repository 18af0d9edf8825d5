"""What belongs to a cut of the log, at a broker whose last run did not get to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from aerobee import Message, TransactionState
from aerobee.broker.assembly.broker import Broker
from aerobee.broker.transaction.service import Transactions
from aerobee.errors import StoreError
from aerobee.store.files.disk import RealDisk
from aerobee.store.message_store import MessageStore
from aerobee.testing import LocalCluster
from tests.waiting import wait_until


def transactions_of(broker: Broker) -> Transactions:
    return next(each for each in broker._serving.features if isinstance(each, Transactions))


async def cut_by_hand(store: MessageStore, start: int) -> None:
    """As a slave that is killed behind the cut."""
    again = MessageStore(
        store.config,
        disk=store._files._disk,
        clock=store._cleaner._clock,
        store_host=lambda: store.store_host,
    )
    again.load()
    await again.start()
    await again.cut_to(start)
    await again.abandon()


async def test_a_start_reads_no_progress_that_was_cut(tmp_path: Path) -> None:
    async with LocalCluster(directory=tmp_path) as cluster:
        async with cluster.producer("group") as producer:
            await producer.send(Message("orders", b"kept"))
            start = cluster.broker().store.log.end
            await producer.send(Message("orders", b"cut"))
        store = cluster.broker().store
        await cluster.stop_broker()
        await cut_by_hand(store, start)
        settled, disk = store.config.path("config", "transactionSettled.json"), RealDisk()
        disk.replace_file(settled, b'{"settledOffset":%d}' % (1 << 40))
        await cluster.start_broker()
        broker = cluster.broker()
        assert broker.store.log.end == start
        assert transactions_of(broker)._settled_offset == 0
        assert not disk.exists(settled)
        await wait_until(lambda: broker.store.pending_cut is None)
        assert not disk.exists(store.config.path("cut", "unfinished"))
        await cluster.stop_broker()
        await cluster.start_broker()
        assert cluster.broker().store.pending_cut is None


async def test_a_cut_stays_pending_while_the_disk_takes_no_offsets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with LocalCluster(directory=tmp_path) as cluster:
        broker = cluster.broker()
        broker.store._files.cut_intent.begin(broker.store.log.end, broker.store.log)
        file = broker.offsets._file
        assert file is not None
        write = file.write

        def refuse(value: object) -> None:
            raise StoreError("no space")

        monkeypatch.setattr(file, "write", refuse)
        broker.replication.after_cut.begin()
        await wait_until(lambda: "trying again" in caplog.text)
        assert broker.store.pending_cut is not None
        monkeypatch.setattr(file, "write", write)
        await cluster.advance_clock(30)
        await wait_until(lambda: broker.store.pending_cut is None)


async def test_a_flush_of_an_earlier_term_settles_no_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that led, was cut and leads again, all before the disk answers: what it saved then is void."""
    async with LocalCluster(directory=tmp_path) as cluster:
        broker = cluster.broker()
        feature = transactions_of(broker)
        async with cluster.transaction_producer(
            "group", checker=lambda message: TransactionState.UNKNOWN
        ) as producer:
            await producer.send_in_transaction(
                Message("orders", b"open"), executor=lambda message, argument: TransactionState.UNKNOWN
            )
            waiting: list[Callable[[bool], object]] = []
            with monkeypatch.context() as patch:
                patch.setattr(
                    type(broker.store.flushed), "when", lambda self, end, call: waiting.append(call)
                )
                feature._save_again()
            assert waiting
            before = feature._settled_offset
            feature.resign()
            feature._running = True  # as it does when it leads again
            for call in waiting:
                call(True)
            assert feature._settled_offset == before
