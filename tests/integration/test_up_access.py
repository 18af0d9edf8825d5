"""`aerobee up` with access control from the environment: it asks with its own keys, and says once what is missing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from aerobee.access.config import AccessConfig
from aerobee.errors import ConfigError
from aerobee.ops.servers.up_access import own_keys, require_inner_keys, what_commands_need
from tests.ports import free_block, free_port

USER = '{"username":"root","password":"root-secret-1"}'
INNER = '{"accessKey":"brokers","secretKey":"brokers-secret"}'
ON = {"AEROBEE_AUTHENTICATIONENABLED": "true", "AEROBEE_INITAUTHENTICATIONUSER": USER}
WITH_INNER = {**ON, "AEROBEE_INNERCLIENTAUTHENTICATIONCREDENTIALS": INNER}


def start(directory: Path, settings: dict[str, str]) -> subprocess.Popen[str]:
    port, nameserver = free_block(20) + 2, free_port()
    environment = {key: value for key, value in os.environ.items() if not key.startswith("AEROBEE_")}
    ports = ("--port", str(port), "--nameserver-port", str(nameserver), "--grpc-port", str(free_block(2)))
    arguments = ("--brokers", "2", *ports, "--data", str(directory), "--no-console", "--json")
    return subprocess.Popen(
        [sys.executable, "-m", "aerobee.ops", "up", *arguments],
        env={**environment, **settings},
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_up_is_ready_without_keys_of_an_operator_and_says_that_commands_need_them(tmp_path: Path) -> None:
    process = start(tmp_path, WITH_INNER)
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["event"] == "ready"
    finally:
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert said.count("export AEROBEE_ACCESS_KEY=root AEROBEE_SECRET_KEY=…") == 1, said
    assert "root-secret-1" not in said
    assert "waiting" not in said


def test_up_ends_at_once_when_the_nameserver_refuses_its_keys(tmp_path: Path) -> None:
    accounts = "accounts: [{accessKey: someone, secretKey: some-secret, admin: true}]\n"
    (tmp_path / "plain_acl.yml").write_text(accounts)
    process = start(tmp_path, {"AEROBEE_ACLENABLE": "true"})
    out, said = process.communicate(timeout=60)
    assert process.returncode != 0, said
    assert "set AEROBEE_INNERCLIENTAUTHENTICATIONCREDENTIALS=" in json.loads(out)["error"]["message"]
    assert "waiting" not in said


def test_brokers_without_keys_to_register_with_are_not_started() -> None:
    closed = AccessConfig(authentication_enabled=True, init_authentication_user=USER)
    with pytest.raises(ConfigError, match="AEROBEE_INNERCLIENTAUTHENTICATIONCREDENTIALS"):
        require_inner_keys(closed, ON)
    require_inner_keys(closed, {})  # the NameServer calls no peer
    require_inner_keys(closed, {**ON, "AEROBEE_AUTHENTICATIONWHITELIST": "103"})
    inner = AccessConfig(authentication_enabled=True, inner_client_authentication_credentials=INNER)
    require_inner_keys(inner, WITH_INNER)


def test_keys_are_those_of_the_settings_then_of_the_environment() -> None:
    operator = {"AEROBEE_ACCESS_KEY": "op", "AEROBEE_SECRET_KEY": "op-secret"}
    closed = AccessConfig(authentication_enabled=True, init_authentication_user=USER)
    found = own_keys(closed, operator)
    assert found is not None
    assert found.access_key == "root"
    found = own_keys(AccessConfig(acl_enable=True), operator)
    assert found is not None
    assert found.access_key == "op"
    assert own_keys(AccessConfig(), {}) is None
    assert what_commands_need(closed, operator) == what_commands_need(AccessConfig(), {}) == ""
