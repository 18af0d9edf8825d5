"""What a role is started with in a container: which defaults, which variables win, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee.errors import ConfigError
from aerobee.ops.servers.container import advertised, config_path, own_peer, role_defaults, role_flags
from aerobee.ops.settings.settings import broker_settings, nameserver_settings

PEERS = "n0-ns-0.ns.svc:9878;n1-ns-1.ns.svc:9878"


def assignments(flags: list[str]) -> list[str]:
    return [flags[at + 1] for at, flag in enumerate(flags) if flag == "--set"]


def test_a_broker_with_an_outside_address_has_two_listeners_that_start() -> None:
    environ = {"AEROBEE_ADVERTISED": "203.0.113.7:31000", "AEROBEE_ADVERTISED_INTERNAL": "broker"}
    flags = role_flags("broker", environ, "c0ffee")
    settings = broker_settings(assignments=assignments(flags), environ=environ)
    assert {name: each.address for name, each in settings.broker.advertised.items()} == {
        "internal": "broker:10911",
        "external": "203.0.113.7:31000",
    }
    assert [each.port for each in settings.broker.bound_listeners] == [10_911, 10_921]
    assert settings.store.store_path_root_dir == "/var/lib/aerobee/store"
    assert settings.broker.metrics_exporter_type == "PROM"


def test_without_an_outside_address_there_is_one_listener_with_the_inner_name() -> None:
    environ = {"AEROBEE_ADVERTISED_INTERNAL": "b-0.brokers"}
    settings = broker_settings(assignments=assignments(role_flags("broker", environ, "x")), environ=environ)
    assert settings.broker.listeners == ""
    assert settings.broker.broker_ip1 == "b-0.brokers"


def test_the_host_name_is_the_inner_name_unless_it_is_given() -> None:
    defaults = role_defaults("broker", {"AEROBEE_ADVERTISED": "localhost"}, "c0ffee", set())
    assert defaults["advertisedListeners"] == "internal://c0ffee:10911,external://localhost:10911"


@pytest.mark.parametrize("variable", ["AEROBEE_STOREPATHROOTDIR", "AEROBEE_STORE_PATH_ROOT_DIR"])
def test_a_variable_wins_over_a_default(variable: str) -> None:
    environ = {variable: "/data"}
    flags = role_flags("broker", environ, "x")
    assert (
        broker_settings(assignments=assignments(flags), environ=environ).store.store_path_root_dir == "/data"
    )


def test_a_mounted_file_wins_over_a_default_and_its_listeners_over_advertised(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("listeners=a://0.0.0.0:1\nmetricsExporterType=DISABLE\n", encoding="utf-8")
    flags = role_flags("broker", {"AEROBEE_CONFIG": str(path), "AEROBEE_ADVERTISED": "localhost"}, "x")
    assert flags[:2] == ["-c", str(path)]
    assert not [
        each for each in assignments(flags) if each.startswith(("listeners", "advertised", "metrics"))
    ]


def test_a_nameserver_listens_for_both_sides_and_is_the_controller_of_its_name() -> None:
    environ = {
        "AEROBEE_ENABLECONTROLLERINNAMESRV": "true",
        "AEROBEE_CONTROLLERDLEGERGROUP": "c",
        "AEROBEE_CONTROLLERDLEGERPEERS": PEERS,
    }
    settings = nameserver_settings(
        assignments=assignments(role_flags("nameserver", environ, "ns-1")), environ=environ
    )
    assert settings.server.listeners == "internal://:9876,external://:9877"
    assert settings.controller is not None
    assert settings.controller.controller_d_leger_self_id == "n1"
    assert settings.server.metrics_exporter_type == "PROM"


def test_own_peer_is_the_one_whose_first_label_is_the_host_name() -> None:
    assert own_peer(PEERS, "ns-1.whatever") == "n1"
    assert own_peer(PEERS, "ns-10") == ""
    assert own_peer("", "ns-1") == ""


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost", "localhost:10911"),
        ("h:7", "h:7"),
        (" h:7\n", "h:7"),
        ("", ""),
        ("[::1]:7", "[::1]:7"),
        ("fd00::7:20911", "[fd00::7]:20911"),
    ],
)
def test_advertised_takes_a_host_with_or_without_port(text: str, address: str) -> None:
    assert advertised({"AEROBEE_ADVERTISED": text}) == address


@pytest.mark.parametrize("text", ["a:b:c", ":7", "a:0", "a:70000", "a,b", "a:1,b:2"])
def test_an_address_that_cannot_be_used_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match="AEROBEE_ADVERTISED"):
        advertised({"AEROBEE_ADVERTISED": text})


def test_a_file_with_the_address_is_waited_for_and_its_absence_is_named(tmp_path: Path) -> None:
    path = tmp_path / "advertised"
    environ = {"AEROBEE_ADVERTISED_FILE": str(path)}
    with pytest.raises(ConfigError, match="still empty or missing"):
        advertised(environ, wait_s=0)
    path.write_text("10.0.0.9:31002\n", encoding="utf-8")
    assert advertised(environ, wait_s=0) == "10.0.0.9:31002"


def test_no_file_is_named_when_none_is_mounted() -> None:
    assert config_path("broker", {}) == ""


@pytest.mark.parametrize("role", ["broker", "controller"])
def test_a_container_binds_to_both_address_families(role: str) -> None:
    assert role_defaults(role, {}, "x", set())["bindAddress"] == ""


def test_an_ipv6_host_inside_is_advertised_in_brackets() -> None:
    environ = {"AEROBEE_ADVERTISED": "fd00::7:31000", "AEROBEE_ADVERTISED_INTERNAL": "fd00::8"}
    settings = broker_settings(assignments=assignments(role_flags("broker", environ, "x")), environ=environ)
    assert {name: each.address for name, each in settings.broker.advertised.items()} == {
        "internal": "[fd00::8]:10911",
        "external": "[fd00::7]:31000",
    }
    assert [each.host for each in settings.broker.bound_listeners] == ["", ""]
