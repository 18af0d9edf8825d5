"""`aerobee context`: what it keeps of each cluster, and that the address of one cluster never becomes another's."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from aerobee.ops.commands.tree import run_cli


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("AEROBEE_NAMESRV_ADDR", "NAMESRV_ADDR", "AEROBEE_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def kept(home: Path) -> dict[str, Any]:
    return tomllib.loads((home / "aerobee" / "client.toml").read_text())["context"]


def run(line: str) -> int:
    return run_cli(["context", *line.split()])


def test_a_context_is_added_with_its_user_from_the_environment(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHO", "alice")
    monkeypatch.setenv("SECRET", "of alice")
    assert run("add prod --nameserver a:1 --tls-ca ca.pem --access-key-env WHO --secret-key-env SECRET") == 0
    prod = kept(home)["prod"]
    assert (prod["nameserver"], prod["tls"]) == ("a:1", True)
    assert Path(prod["tls_ca_file"]).is_absolute()
    assert (prod["access_key"], prod["secret_key"]) == ("alice", "of alice")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("add prod -n b:1", "`aerobee context set prod` changes it"),
        ("add new --access-key x", "context new is new and needs an address"),
        ("set new --access-key x", "context new is new and needs an address"),
        ("add new -n b:1 --access-key-env NOT_THERE", "--access-key-env NOT_THERE: this variable is not set"),
        ("add new -n b:1 --access-key x --access-key-env WHO", "mutually exclusive"),
    ],
)
def test_what_cannot_be_kept_is_said_and_changes_nothing(
    line: str, said: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("add prod -n a:1") == 0
    assert run(line) == 2
    assert said in capsys.readouterr().err
    assert kept(home) == {"prod": {"nameserver": "a:1"}}


@pytest.mark.parametrize("current", ["prod", "staging"])
def test_a_change_leaves_where_the_cluster_is(current: str, home: Path) -> None:
    """The current context's, this machine's, or the environment's NameServers were written into the other one."""
    assert run("add prod -n a:1") == 0
    assert run("add staging -n b:1") == 0
    assert run(f"use {current}") == 0
    assert run("set staging --tls") == 0
    assert kept(home)["staging"] == {"nameserver": "b:1", "tls": True}


def test_the_environment_is_not_kept(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("add prod -n a:1") == 0
    monkeypatch.setenv("AEROBEE_NAMESRV_ADDR", "elsewhere:1")
    assert run("set prod --tls") == 0
    assert kept(home)["prod"]["nameserver"] == "a:1"
