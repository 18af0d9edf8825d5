"""Keys with one Java hash: the index cannot tell them apart, the answer does."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee.message import decode_records, java_hash
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.store.read.key_query import CANDIDATES_MAX
from tests.abuse.untrusted_peer import UntrustedPeer, broker_at

TIME_MAX = str(2**63 - 1)


async def keys_found(peer: UntrustedPeer, key: str, **fields: str) -> list[str]:
    ext = {
        "topic": "pairs",
        "key": key,
        "maxNum": "2",
        "beginTimestamp": "0",
        "endTimestamp": TIME_MAX,
        **fields,
    }
    reply = await peer.call(RequestCode.QUERY_MESSAGE, ext)
    if reply.code == ResponseCode.QUERY_NOT_FOUND:
        return []
    assert reply.code == 0, reply.remark
    return [record.body.decode() for record in decode_records(reply.body)]


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("KEYS", {"indexType": "K"}),
        ("UNIQ_KEY", {"indexType": "U", "_UNIQUE_KEY_QUERY": "true"}),
        ("TAGS", {"indexType": "T"}),
    ],
)
async def test_a_key_is_found_behind_many_of_its_hash(
    tmp_path: Path, name: str, fields: dict[str, str]
) -> None:
    assert java_hash("Aa") == java_hash("BB")
    async with broker_at(tmp_path) as broker, UntrustedPeer(broker.address) as peer:
        for body, key in [(b"first", "Aa"), *[(b"other", "BB")] * 300, (b"last", "CC")]:
            assert (await peer.send_message("pairs", body, properties=f"{name}\x01{key}\x02")).code == 0
        assert await keys_found(peer, "Aa", **fields) == ["first"]
        assert set(await keys_found(peer, "BB", **fields)) == {"other"}
        assert await keys_found(peer, "C\x24", **fields) == [], "a hash alone is no answer"
        cold = await broker.store.query_cold("pairs", "Aa", count_max=2, index_type=fields["indexType"])
        assert cold.count == 1
        assert CANDIDATES_MAX > 300
