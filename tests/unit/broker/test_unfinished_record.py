"""A record that could not be finished: nothing may follow it, by either backend, and the sender hears of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee.broker.fastpath.choice import NATIVE, PYTHON
from aerobee.errors import StoreError
from aerobee.store.consume_queue import ConsumeQueue
from tests.fakes import FakePeer
from tests.unit.broker.sending import Sending, send_frame, use_backend


@pytest.mark.parametrize("backend", [PYTHON, NATIVE])
def test_a_store_with_an_unfinished_record_takes_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    use_backend(backend, monkeypatch)
    sending = Sending(tmp_path)
    try:
        peer = FakePeer()

        def fail(queue: ConsumeQueue, physical_offset: int) -> None:
            raise RuntimeError("a fault of ours")

        with monkeypatch.context() as broken:
            broken.setattr(ConsumeQueue, "mark_dirty", fail)
            with pytest.raises(StoreError, match=r"the record at 0 was not finished.*a fault of ours"):
                sending.fast_path.burst(peer, send_frame(), 0)  # type: ignore[arg-type]
        assert not sending.store.is_writable
        assert "was not finished" in sending.store.writability.reason
        frame = send_frame()
        assert sending.fast_path.burst(peer, frame, 0) == 0, "what comes next is for the handlers"  # type: ignore[arg-type]
        reply = sending.handle(peer, frame)
        assert reply is not None
        assert reply.code != 0
        assert "was not finished" in (reply.remark or "")
    finally:
        sending.close()
