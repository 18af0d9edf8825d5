"""AerobeeContainer at a fake Docker: ports that are taken, a cluster that ends or never says that it is ready."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import APIError, NotFound
from testcontainers.core import container as testcontainers_container
from testcontainers.core.config import testcontainers_config
from testcontainers.core.exceptions import ContainerStartException

from aerobee.errors import UsageError
from aerobee.testing import container
from aerobee.testing.container import AerobeeContainer

READY_LINE = b'{"event":"ready","nameserver":"127.0.0.1:1"}\n'
TAKEN = "driver failed programming external connectivity: Bind for 0.0.0.0:20000 failed: port is already allocated"


class FakeContainer:
    short_id = id = "c1"

    def __init__(self, docker: FakeDocker) -> None:
        self._docker = docker
        self.status = "running"

    def reload(self) -> None:
        self.status = self._docker.status

    def logs(self, stdout: bool = True, stderr: bool = True) -> bytes:
        return self._docker.log if stdout else b""

    def remove(self, **_: Any) -> None:
        self._docker.removed += 1

    def exec_run(self, command: list[str], **_: Any) -> Any:
        self._docker.commands.append(command)
        return SimpleNamespace(exit_code=self._docker.exit_code, output=b"said")


class FakeDocker:
    """What AerobeeContainer uses of testcontainers' DockerClient, whichever version asks to run, or to create and start."""

    def __init__(self) -> None:
        self.refusals: list[str] = []
        self.log, self.status, self.exit_code = READY_LINE, "running", 0
        self.runs: list[dict[str, Any]] = []
        self.commands: list[list[str]] = []
        self.removed = 0
        self.client = SimpleNamespace(close=lambda: None, containers=SimpleNamespace(get=self._get))
        self._made: FakeContainer | None = None

    def __call__(self, **_: Any) -> FakeDocker:
        return self

    def host(self) -> str:
        return "localhost"

    def create(self, image: str, **options: Any) -> FakeContainer:
        self.runs.append({"image": image, **options})
        self._made = FakeContainer(self)
        return self._made

    def start(self, made: FakeContainer) -> None:
        if self.refusals:
            raise APIError("refused", explanation=self.refusals.pop(0))

    def run(self, image: str, **options: Any) -> FakeContainer:
        made = self.create(image, **options)
        self.start(made)
        return made

    def _get(self, name: str) -> FakeContainer:
        if self._made is None:
            raise NotFound("no such container")
        return self._made


@pytest.fixture
def docker(monkeypatch: pytest.MonkeyPatch) -> FakeDocker:
    fake = FakeDocker()
    monkeypatch.setattr(testcontainers_container, "DockerClient", fake)
    monkeypatch.setattr(testcontainers_config, "ryuk_disabled", True)
    monkeypatch.setattr(AerobeeContainer, "_is_reachable", lambda self, port: True)
    monkeypatch.setattr(AerobeeContainer, "_serves_console", lambda self: True)
    monkeypatch.setattr(container, "POLL_S", 0)
    return fake


def test_published_ports_have_one_number_inside_and_outside(docker: FakeDocker) -> None:
    with AerobeeContainer(brokers=2, replicas=2, grpc=True, settings={"a": "b"}) as cluster:
        assert len(cluster.broker_addresses) == len(cluster.grpc_addresses) == 4
        assert len(cluster.controller_addresses) == 3
        (run,) = docker.runs
        assert all(outside == ("127.0.0.1", int(inside)) for inside, outside in run["ports"].items())
        assert len(run["ports"]) == 1 + 3 + 4 + 3 * 4
        assert run["command"][run["command"].index("--advertise") + 1] == "127.0.0.1"
        assert cluster.nameserver_address == f"127.0.0.1:{min(map(int, run['ports']))}"
        assert cluster.console_url == ""
    assert docker.removed == 1


def test_a_port_that_is_taken_meanwhile_is_replaced(docker: FakeDocker) -> None:
    docker.refusals = [TAKEN, TAKEN]
    with AerobeeContainer():
        assert len(docker.runs) == 3
        assert docker.removed == 2  # a container that could not start is not left behind
        assert len(docker.runs[-1]["ports"]) == 4  # the ports of the tries before are not published too
        words = docker.runs[-1]["command"]
        assert words[words.index("--nameserver-port") + 1] in docker.runs[-1]["ports"]


def test_another_refusal_of_docker_is_not_tried_again(docker: FakeDocker) -> None:
    docker.refusals = ["no such image"]
    with pytest.raises(APIError, match="no such image"):
        AerobeeContainer().start()
    assert len(docker.runs) == 1


def test_a_cluster_that_ends_is_reported_with_its_log(docker: FakeDocker) -> None:
    docker.status, docker.log = "exited", b"error: --set nonsense=1: unknown key\n"
    with pytest.raises(ContainerStartException, match="unknown key"):
        AerobeeContainer(settings={"nonsense": "1"}).start()
    assert docker.removed == 1


def test_a_cluster_that_is_never_ready_is_reported(docker: FakeDocker) -> None:
    docker.log = b"waiting: no broker is registered\n"
    with pytest.raises(ContainerStartException, match=re.escape("waiting: no broker")):
        AerobeeContainer(startup_timeout_s=0).start()
    assert docker.removed == 1


def test_the_console_has_a_password(docker: FakeDocker) -> None:
    with AerobeeContainer(console=True) as cluster:
        assert cluster.console_url.startswith("http://127.0.0.1:")
        assert len(cluster.console_password) >= 12
        assert docker.commands[0][:2] == ["python3", "-c"]


def test_a_command_that_fails_is_an_error_with_its_output(docker: FakeDocker) -> None:
    with AerobeeContainer() as cluster:
        assert cluster.command("topic", "create", "orders") == "said"
        assert docker.commands[-1][:4] == ["aerobee", "topic", "create", "orders"]
        docker.exit_code = 4
        with pytest.raises(UsageError, match="ended with 4: said"):
            cluster.command("topic", "describe", "none")


def test_docker_at_another_machine_publishes_to_its_clients(docker: FakeDocker) -> None:
    with AerobeeContainer(advertise="docker.example", settings={"adminOpen": "false"}) as cluster:
        (run,) = docker.runs
        assert all(outside == int(inside) for inside, outside in run["ports"].items())
        assert cluster.nameserver_address.startswith("docker.example:")
        assert "adminOpen=false" in run["command"]
        assert "adminOpen=true" not in run["command"]


def test_addresses_are_unknown_before_the_start(docker: FakeDocker) -> None:
    with pytest.raises(UsageError, match="not started"):
        _ = AerobeeContainer().nameserver_address
    with pytest.raises(UsageError, match="at least 1"):
        AerobeeContainer(brokers=0)
