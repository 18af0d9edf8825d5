"""The image by itself: who it runs as, how large it is, what it refuses, how it stops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from docker import DockerClient
from docker.errors import ContainerError
from docker.models.containers import Container

from tests.deploy.docker import IMAGE, health
from tests.interop.rocketmq import wait_for

SIZE_BYTES_MAX = 120_000_000
NAME = "aerobee-test-image"


@pytest.fixture
def broker(dockerd: DockerClient) -> Iterator[Container]:
    started = dockerd.containers.run(
        IMAGE,
        ["broker", "--name", "b"],
        name=NAME,
        detach=True,
        read_only=True,
        tmpfs={"/tmp": ""},
        cap_drop=["ALL"],
    )
    try:
        wait_for("a healthy broker", lambda: health(NAME) == "healthy", 120)
        yield started
    finally:
        started.remove(force=True, v=True)


def said(dockerd: DockerClient, command: list[str], **options: Any) -> str:
    """Output of a container that ends by itself."""
    output: bytes = dockerd.containers.run(IMAGE, command, remove=True, stderr=True, **options)
    return output.decode()


def test_the_image_is_small_and_runs_unprivileged(dockerd: DockerClient) -> None:
    found = dockerd.images.get(IMAGE).attrs
    assert found["Size"] < SIZE_BYTES_MAX
    assert found["Config"]["User"] == "10001:10001"
    assert found["Config"]["Entrypoint"][0].endswith("tini")


def test_other_commands_are_there(dockerd: DockerClient) -> None:
    assert "fast path   native" in said(dockerd, ["--version"])
    assert "broker" in said(dockerd, ["--help"])


def test_the_image_has_the_licences_of_what_it_contains(dockerd: DockerClient) -> None:
    """Debian's copyright file of each package, and the licence files of Aerobee and its crates."""
    look = (
        "cd /var/lib/dpkg/status.d && for each in *; do "
        "[ -s /usr/share/doc/$each/copyright ] || echo no copyright of $each; done; "
        "find /usr/local/lib/python3.11/dist-packages -path '*aerobee-*licenses*' -type f"
    )
    lines = said(dockerd, ["-c", look], entrypoint="/bin/sh").splitlines()
    assert not [line for line in lines if line.startswith("no copyright")]
    assert {line.rpartition("/")[2] for line in lines} == {"LICENSE", "THIRD_PARTY_LICENSES.txt"}


def test_a_broker_runs_with_a_read_only_root_and_without_capabilities(broker: Container) -> None:
    assert "native fast path" in broker.logs().decode()
    assert broker.exec_run(["id", "-u"]).output.decode().strip() == "10001"
    refused = broker.exec_run(["sh", "-c", "echo x > /usr/bin/x"])
    assert refused.exit_code != 0
    assert b"Read-only file system" in refused.output or b"can't create" in refused.output


def test_a_stop_is_clean_and_a_second_start_opens_the_same_store(broker: Container) -> None:
    broker.stop(timeout=20)
    assert "stopped cleanly" in broker.logs().decode()
    broker.start()
    wait_for("a healthy broker", lambda: health(NAME) == "healthy", 120)
    assert broker.logs().decode().count("opened after a clean stop") == 2


def test_a_wrong_setting_ends_the_container_with_the_reason(dockerd: DockerClient) -> None:
    with pytest.raises(ContainerError, match="AEROBEE_ADVERTISED") as caught:
        said(dockerd, ["broker"], environment={"AEROBEE_ADVERTISED": "a:b:c"})
    assert caught.value.exit_status == 2
