"""The KV configuration and its file, which either product reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aerobee.errors import ConfigError
from aerobee.nameserver.kv_config import KvConfig, read_table


async def test_a_change_is_on_disk_when_it_returns_and_the_file_before_stays(tmp_path: Path) -> None:
    path = tmp_path / "namesrv" / "kvConfig.json"
    config = KvConfig(path)
    config.load()
    await config.put("ORDER_TOPIC_CONFIG", "TopicOrder", "broker-a:4")
    before = path.read_bytes()
    assert before == b'{"configTable":{"ORDER_TOPIC_CONFIG":{"TopicOrder":"broker-a:4"}}}'
    await config.delete("ORDER_TOPIC_CONFIG", "TopicOrder")
    assert json.loads(path.read_bytes()) == {"configTable": {"ORDER_TOPIC_CONFIG": {}}}
    assert path.with_name("kvConfig.json.bak").read_bytes() == before
    assert sorted(file.name for file in path.parent.iterdir()) == ["kvConfig.json", "kvConfig.json.bak"]

    again = KvConfig(path)
    again.load()
    assert again.namespace("ORDER_TOPIC_CONFIG") == {}
    assert again.namespace("never used") is None
    assert again.get("ORDER_TOPIC_CONFIG", "TopicOrder") is None


async def test_deleting_what_is_not_there_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    await KvConfig(path).delete("NS", "k")
    assert not path.exists()


async def test_a_change_that_cannot_be_written_is_not_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way of a directory")
    config = KvConfig(tmp_path / "file" / "kvConfig.json")
    with pytest.raises(OSError):
        await config.put("NS", "k", "v")
    assert config.get("NS", "k") is None


async def test_without_a_path_the_table_is_in_memory() -> None:
    config = KvConfig(None)
    config.load()
    await config.put("NS", "k", "v")
    assert config.get("NS", "k") == "v"


def test_a_file_as_rocketmq_writes_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text('{\n\t"configTable":{\n\t\t"NS1":{\n\t\t\t"k1":"v1"\n\t\t}\n\t}\n}')
    assert read_table(path) == {"NS1": {"k1": "v1"}}
    path.write_text("")
    assert read_table(path) == {}
    path.write_text("{}")
    assert read_table(path) == {}
    assert read_table(tmp_path / "missing.json") == {}


@pytest.mark.parametrize("text", ["{", "[]", '{"configTable":[]}', '{"configTable":{"NS":{"k":1}}}'])
def test_a_broken_file_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"kvConfig\.json"):
        read_table(path)


def test_a_path_that_is_no_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_table(tmp_path)
