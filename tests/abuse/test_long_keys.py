"""Keys and tags as long as the properties allow are stored and found."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee.broker.fastpath.choice import VARIABLE
from tests.abuse.untrusted_peer import UntrustedPeer, broker_at


@pytest.mark.parametrize("backend", ["python", ""])
async def test_a_long_key_is_found(tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, backend)
    key = "k" * 12_000
    async with broker_at(tmp_path) as broker, UntrustedPeer(broker.address) as peer:
        for number in range(2):  # the second one is the fast path's
            properties = f"KEYS\x01{key}\x02TAGS\x01{key}\x02"
            assert (await peer.send_message("t", b"body %d" % number, properties=properties)).code == 0
        ext = {"topic": "t", "key": key, "maxNum": "8", "beginTimestamp": "0", "endTimestamp": str(2**62)}
        found = await peer.call(12, ext)
        assert found.code == 0, found.remark
        assert b"body 0" in found.body
        assert b"body 1" in found.body
        assert (await peer.call(12, {**ext, "key": key * 20})).code == 22
