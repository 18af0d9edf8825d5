from pathlib import Path

import pytest

from aerobee.config import Setting
from aerobee.errors import ConfigError
from aerobee.ops.servers.up import make_plan
from aerobee.ops.settings.settings import broker_settings, nameserver_settings
from aerobee.store.files.config import FlushDiskType


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_the_last_source_wins(tmp_path: Path) -> None:
    path = write(
        tmp_path / "broker.conf", "listenPort=1\nbrokerName=file\nregionId=file\nflushDiskType=SYNC_FLUSH\n"
    )
    settings = broker_settings(
        path=path,
        assignments=["regionId=set"],
        flags={"brokerName": Setting("flag", "--name")},
        environ={"AEROBEE_LISTEN_PORT": "2", "AEROBEE_REGIONID": "environment"},
    )
    assert settings.broker.listen_port == 2
    assert settings.broker.broker_name == "flag"
    assert settings.broker.region_id == "set"
    assert settings.store.flush_disk_type is FlushDiskType.SYNC_FLUSH


def test_an_unknown_key_is_refused_with_line_and_nearest_key(tmp_path: Path) -> None:
    path = write(tmp_path / "broker.conf", "brokerName=a\n\nflushDiskTyp=SYNC_FLUSH\n")
    with pytest.raises(
        ConfigError, match=r"broker.conf:3: unknown key flushDiskTyp; did you mean flushDiskType\?"
    ):
        broker_settings(path=path, environ={})


def test_key_of_rocketmq_without_use_is_noted(tmp_path: Path) -> None:
    path = write(tmp_path / "broker.conf", "sendMessageThreadPoolNums=16\n")
    notes: list[str] = []
    broker_settings(path=path, environ={}, note=notes.append)
    assert len(notes) == 1
    assert "sendMessageThreadPoolNums" in notes[0]


def test_wrong_value_names_file_line_key_value_and_reason(tmp_path: Path) -> None:
    path = write(tmp_path / "broker.conf", "brokerName=a\nlistenPort=99999\n")
    with pytest.raises(ConfigError, match=r"broker.conf:2: listenPort is 99999, must be between 0 and 65535"):
        broker_settings(path=path, environ={})
    path = write(tmp_path / "namesrv.conf", "listenPort=many\n")
    with pytest.raises(ConfigError, match=r"namesrv.conf:1: listenPort is 'many', must be a whole number"):
        nameserver_settings(path=path, environ={})


def test_missing_file_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="/nonexist: cannot be read"):
        broker_settings(path="/nonexist", environ={})


@pytest.mark.parametrize("text", ["flushDiskType", "=x"])
def test_assignment_without_key_and_value_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="write --set KEY=VALUE"):
        broker_settings(assignments=[text], environ={})


def test_production_creates_nothing_by_a_typing_error() -> None:
    settings = broker_settings(profile="production", environ={})
    assert not settings.broker.auto_create_topic_enable
    assert not settings.broker.auto_create_subscription_group
    assert broker_settings(environ={}).broker.auto_create_topic_enable
    with pytest.raises(ConfigError, match="development, production"):
        broker_settings(profile="prod", environ={})


def test_plan_gives_each_broker_its_port_name_and_directory(tmp_path: Path) -> None:
    plan = make_plan(
        broker_count=3,
        port=10911,
        nameserver_port=9876,
        host="0.0.0.0",
        advertise="203.0.113.7",
        data=tmp_path,
        environ={},
    )
    assert [settings.broker.listen_port for settings in plan.brokers] == [10911, 10921, 10931]
    assert [settings.broker.broker_name for settings in plan.brokers] == ["broker-a", "broker-b", "broker-c"]
    assert {settings.broker.broker_ip1 for settings in plan.brokers} == {"203.0.113.7"}
    assert len({settings.store.store_path_root_dir for settings in plan.brokers}) == 3
    assert plan.brokers[0].broker.nameservers == ("127.0.0.1:9876",)


def test_plan_of_replicas_shares_a_name_and_its_controllers(tmp_path: Path) -> None:
    plan = make_plan(
        broker_count=2,
        replica_count=3,
        controller_port=9878,
        port=10911,
        nameserver_port=9876,
        host="127.0.0.1",
        advertise=None,
        data=tmp_path,
        environ={},
    )
    assert plan.titles == tuple(f"broker-{name} {number}" for name in "ab" for number in (1, 2, 3))
    assert len({settings.store.store_path_root_dir for settings in plan.brokers}) == 6
    assert {settings.broker.controller_addr for settings in plan.brokers} == {
        "127.0.0.1:9878;127.0.0.1:9879;127.0.0.1:9880"
    }
    assert all(settings.broker.enable_controller_mode for settings in plan.brokers)
    assert all(settings.store.all_ack_in_sync_state_set for settings in plan.brokers)
    assert [flags["controllerDLegerSelfId"] for flags in plan.controllers] == ["n0", "n1", "n2"]


def test_plan_of_a_throw_away_cluster_has_small_files_unless_told(tmp_path: Path) -> None:
    plan = make_plan(
        broker_count=1,
        port=10911,
        nameserver_port=9876,
        host="127.0.0.1",
        advertise=None,
        data=tmp_path,
        ephemeral=True,
        assignments=["maxIndexNum=77"],
        environ={},
    )
    assert plan.brokers[0].store.mapped_file_size_commit_log < 2**30
    assert plan.brokers[0].store.max_index_num == 77
