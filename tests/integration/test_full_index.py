"""A key index without space is released: messages with keys are taken and delivered, they are not found by key."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from aerobee.message import decode_records
from aerobee.remoting.codes import RequestCode
from aerobee.store.index.index_file import IndexFile
from aerobee.store.index.key_index import KeyIndex
from tests.abuse.untrusted_peer import UntrustedPeer, broker_at

STORE = {"max_index_num": 16, "max_hash_slot_num": 16}


@pytest.mark.parametrize("kind", ["native", "python"])
async def test_a_full_index_directory_refuses_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("AEROBEE_FAST_PATH", kind)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with (
        broker_at(tmp_path, store=STORE) as broker,
        UntrustedPeer(broker.address) as peer,
    ):
        monkeypatch.setattr(KeyIndex, "_create", full)
        monkeypatch.setattr(KeyIndex, "make_spare", lambda index, now_ms: None)
        monkeypatch.setattr(IndexFile, "reserve", full)
        for number in range(40):
            properties = f"KEYS\x01K{number}\x02UNIQ_KEY\x01U{number}\x02"
            reply = await peer.send_message("orders", b"%d" % number, properties=properties)
            assert reply.code == 0, reply.remark
        assert sum(broker.store.max_offset("orders", queue_id) for queue_id in range(4)) == 40
        assert "No space left" in broker.store.index.fault
        info = await peer.call(RequestCode.GET_BROKER_RUNTIME_INFO, {})
        assert b"No space left" in info.body
    monkeypatch.undo()
    async with (
        broker_at(tmp_path, store=STORE) as broker,
        UntrustedPeer(broker.address) as peer,
    ):
        assert (await peer.send_message("orders", b"after", properties="KEYS\x01after\x02")).code == 0
        found = broker.store.query("orders", "after", count_max=4)
        assert [record.body for record in decode_records(found.body)] == [b"after"]
