"""Keys of real clients at both products: the same configuration file, the same users, the same outcomes.

Java, C++, Go and our client, each with the right key, a wrong one, none, and as a user who may not; RocketMQ's own tool makes the users.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from aerobee import Message, Producer
from aerobee.client.base.config import ClientConfig
from aerobee.errors import AerobeeError
from tests.interop.rocketmq import (
    CLASS_PATH,
    CPP_PYTHON,
    GO_CLIENT,
    HERE,
    JAVA,
    Broker,
    NameServer,
)

ACCESS = {
    "authenticationEnabled": "true",
    "authenticationProvider": "org.apache.rocketmq.auth.authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": "org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider",
    "authorizationEnabled": "true",
    "authorizationProvider": "org.apache.rocketmq.auth.authorization.provider.DefaultAuthorizationProvider",
    "authorizationMetadataProvider": "org.apache.rocketmq.auth.authorization.provider.LocalAuthorizationMetadataProvider",
    "initAuthenticationUser": '{"username":"root","password":"rootsecret"}',
    "innerClientAuthenticationCredentials": '{"accessKey":"inner","secretKey":"innersecret"}',
}
KEYS = {
    "right": ("alice", "alicesecret"),
    "wrong": ("alice", "guessed"),
    "missing": ("", ""),
    "not allowed": ("bob", "bobsecret"),
}
TIMEOUT_S = 180


@dataclass(frozen=True)
class Site:
    """One product with access control, and its users."""

    kind: str
    root: pathlib.Path
    namesrv: str
    broker: Broker

    def mqadmin(self, *arguments: str) -> str:
        """RocketMQ's tool as an administrator."""
        command = [
            *JAVA, f"-Duser.home={self.root}", f"-Drocketmq.home.dir={self.root}", "-cp", CLASS_PATH,
            "org.apache.rocketmq.tools.command.MQAdminStartup", *arguments, "-n", self.namesrv,
        ]  # fmt: skip
        environment = {**os.environ, "ROCKETMQ_HOME": str(self.root)}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=environment
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    def run(self, *command: str | os.PathLike[str], **environment: str) -> dict[str, str]:
        done = subprocess.run(
            [str(each) for each in command],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            env={**os.environ, "HOME": str(self.root), **environment},
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        assert lines, done.stderr[-2000:]
        found: dict[str, str] = json.loads(lines[-1])
        return found


@pytest.fixture(scope="module", params=["aerobee", "rocketmq"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    kind: str = request.param
    root = tmp_path_factory.mktemp(f"keys-{kind}")
    (root / "conf").mkdir()
    (root / "conf" / "tools.yml").write_text("accessKey: root\nsecretKey: rootsecret\n")
    server = NameServer(kind, root)
    server.start()
    broker = Broker(kind, root, server.address, **ACCESS)
    try:
        broker.start()
        made = Site(kind, root, server.address, broker)
        for user in ("alice", "bob"):
            assert "success" in made.mqadmin(
                "createUser", "-c", "DefaultCluster", "-u", user, "-p", f"{user}secret", "-t", "Normal"
            )
        assert "success" in made.mqadmin(
            "createAcl", "-c", "DefaultCluster", "-s", "User:alice", "-r", "Topic:Orders*,Group:readers", "-a", "Pub,Sub",
            "-d", "Allow",
        )  # fmt: skip
        assert "success" in made.mqadmin(
            "updateTopic", "-c", "DefaultCluster", "-t", "Orders", "-r", "1", "-w", "1"
        )
        yield made
    finally:
        broker.stop()
        server.stop()


def test_the_java_client(site: Site) -> None:
    found = {
        name: site.run(*JAVA, "-cp", CLASS_PATH, "KeyClient", site.namesrv, "Orders", "readers", *keys)
        for name, keys in KEYS.items()
    }
    assert found == {
        "right": {"send": "ok", "pull": "ok"},
        "wrong": {"send": "16", "pull": "16"},
        "missing": {"send": "16", "pull": "16"},
        "not allowed": {"send": "16", "pull": "16"},
    }


def test_the_c_client(site: Site) -> None:
    found = {
        name: site.run(CPP_PYTHON, HERE / "cpp" / "keys.py", site.namesrv, "Orders", *keys)["send"]
        for name, keys in KEYS.items()
    }
    assert [name for name, outcome in found.items() if outcome == "ok"] == ["right"], found


def test_the_go_client(site: Site) -> None:
    found = {
        name: site.run(
            GO_CLIENT, site.namesrv, "Orders", "go_keys", "keys", ACCESS_KEY=access, SECRET_KEY=secret
        )["send"]
        == "ok"
        for name, (access, secret) in KEYS.items()
    }
    assert found == {"right": True, "wrong": False, "missing": False, "not allowed": False}


async def test_our_client(site: Site) -> None:
    found = {}
    for name, (access, secret) in KEYS.items():
        client = ClientConfig(access_key=access, secret_key=secret, request_timeout_s=60)
        try:
            async with Producer(site.namesrv, client=client) as producer:
                await producer.send(Message("Orders", b"ours"), timeout_s=60)
            found[name] = "ok"
        except AerobeeError as error:
            found[name] = "16" if "16" in str(error) else str(error)
    assert found == {"right": "ok", "wrong": "16", "missing": "16", "not allowed": "16"}


def test_what_the_tool_lists(site: Site) -> None:
    rows = [
        line.split()
        for line in site.mqadmin("listUser", "-c", "DefaultCluster").splitlines()
        if "Normal" in line or "Super" in line
    ]
    assert sorted((row[0], *row[2:4]) for row in rows) == [
        ("alice", "Normal", "enable"),
        ("bob", "Normal", "enable"),
        ("inner", "Super", "enable"),
        ("root", "Super", "enable"),
    ]
    policies = [
        line.split()
        for line in site.mqadmin("getAcl", "-c", "DefaultCluster", "-s", "User:alice").splitlines()
        if "User:alice" in line
    ]
    assert sorted(row[2] for row in policies) == ["Group:readers", "Topic:Orders*"]
    shown = site.mqadmin("updateUser", "-c", "DefaultCluster", "-u", "bob", "-s", "disable")
    assert "success" in shown
