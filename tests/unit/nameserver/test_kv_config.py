"""The KV configuration and its file, which either product reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aerobee.errors import StoreError
from aerobee.nameserver.kv_config import KvConfig, parse_table
from aerobee.store.files.disk import RealDisk


async def test_a_change_is_on_disk_when_it_returns_and_the_file_before_stays(tmp_path: Path) -> None:
    path = tmp_path / "namesrv" / "kvConfig.json"
    config = KvConfig(str(path), RealDisk())
    config.load()
    await config.put("ORDER_TOPIC_CONFIG", "TopicOrder", "broker-a:4")
    before = path.read_bytes()
    assert before == b'{"configTable":{"ORDER_TOPIC_CONFIG":{"TopicOrder":"broker-a:4"}}}'
    await config.delete("ORDER_TOPIC_CONFIG", "TopicOrder")
    assert json.loads(path.read_bytes()) == {"configTable": {"ORDER_TOPIC_CONFIG": {}}}
    assert path.with_name("kvConfig.json.bak").read_bytes() == before
    assert sorted(file.name for file in path.parent.iterdir()) == ["kvConfig.json", "kvConfig.json.bak"]

    again = KvConfig(str(path), RealDisk())
    again.load()
    assert again.namespace("ORDER_TOPIC_CONFIG") == {}
    assert again.namespace("never used") is None
    assert again.get("ORDER_TOPIC_CONFIG", "TopicOrder") is None


async def test_deleting_what_is_not_there_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    await KvConfig(str(path), RealDisk()).delete("NS", "k")
    assert not path.exists()


async def test_a_change_that_cannot_be_written_is_not_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way of a directory")
    config = KvConfig(str(tmp_path / "file" / "kvConfig.json"), RealDisk())
    with pytest.raises(StoreError):
        await config.put("NS", "k", "v")
    assert config.get("NS", "k") is None


async def test_without_a_path_the_table_is_in_memory() -> None:
    config = KvConfig(None, RealDisk())
    config.load()
    await config.put("NS", "k", "v")
    assert config.get("NS", "k") == "v"


def test_a_file_as_rocketmq_writes_it_is_read() -> None:
    text = b'{\n\t"configTable":{\n\t\t"NS1":{\n\t\t\t"k1":"v1"\n\t\t}\n\t}\n}'
    assert parse_table(text) == {"NS1": {"k1": "v1"}}
    assert parse_table(b"{}") == {}


@pytest.mark.parametrize("text", ["{", "[]", '{"configTable":[1]}', '{"configTable":{"NS":{"k":1}}}'])
def test_a_broken_file_is_refused_by_name_unless_the_one_before_is_whole(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text(text)
    config = KvConfig(str(path), RealDisk())
    with pytest.raises(StoreError, match=r"kvConfig\.json"):
        config.load()
    path.with_name("kvConfig.json.bak").write_text('{"configTable":{"NS":{"k":"v"}}}')
    config.load()
    assert config.get("NS", "k") == "v"
