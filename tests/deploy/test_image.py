"""The image by itself: who it runs as, how large it is, what it refuses, how it stops."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.deploy.docker import IMAGE, docker, health
from tests.interop.rocketmq import wait_for

pytestmark = pytest.mark.usefixtures("daemon")
SIZE_BYTES_MAX = 120_000_000
NAME = "aerobee-test-image"


@pytest.fixture
def broker() -> Iterator[str]:
    docker(
        "run",
        "-d",
        "--name",
        NAME,
        "--read-only",
        "--tmpfs",
        "/tmp",
        "--cap-drop",
        "ALL",
        IMAGE,
        "broker",
        "--name",
        "b",
    )
    wait_for("a healthy broker", lambda: health(NAME) == "healthy", 120)
    yield NAME
    docker("rm", "-f", "-v", NAME)


def test_the_image_is_small_and_runs_unprivileged() -> None:
    found = json.loads(docker("image", "inspect", IMAGE))[0]
    assert found["Size"] < SIZE_BYTES_MAX
    assert found["Config"]["User"] == "10001:10001"
    assert found["Config"]["Entrypoint"][0].endswith("tini")


def test_other_commands_are_there() -> None:
    assert "fast path   native" in docker("run", "--rm", IMAGE, "--version")
    assert "broker" in docker("run", "--rm", IMAGE)


def test_the_image_has_the_licences_of_what_it_contains() -> None:
    """Debian's copyright file of each package, and the licence files of Aerobee and its crates."""
    look = (
        "cd /var/lib/dpkg/status.d && for each in *; do "
        "[ -s /usr/share/doc/$each/copyright ] || echo no copyright of $each; done; "
        "find /usr/local/lib/python3.11/dist-packages -path '*aerobee-*licenses*' -type f"
    )
    lines = docker("run", "--rm", "--entrypoint", "/bin/sh", IMAGE, "-c", look).splitlines()
    assert not [line for line in lines if line.startswith("no copyright")]
    assert {line.rpartition("/")[2] for line in lines} == {"LICENSE", "THIRD_PARTY_LICENSES.txt"}


def test_a_broker_runs_with_a_read_only_root_and_without_capabilities(broker: str) -> None:
    assert "native fast path" in docker(
        "exec", broker, "sh", "-c", "aerobee broker -p | head -0; true"
    ) + _log(broker)
    assert docker("exec", broker, "id", "-u").strip() == "10001"
    assert "Read-only file system" in docker(
        "exec", broker, "sh", "-c", "echo x > /usr/bin/x 2>&1; true"
    ) or "can't create" in docker("exec", broker, "sh", "-c", "(echo x > /usr/bin/x) 2>&1; true")


def test_a_stop_is_clean_and_a_second_start_opens_the_same_store(broker: str) -> None:
    docker("stop", "-t", "20", broker)
    assert "stopped cleanly" in docker("logs", broker)
    docker("start", broker)
    wait_for("a healthy broker", lambda: health(broker) == "healthy", 120)
    assert _log(broker).count("opened after a clean stop") == 2


def test_a_wrong_setting_ends_the_container_with_the_reason() -> None:
    with pytest.raises(AssertionError, match="AEROBEE_ADVERTISED") as caught:
        docker("run", "--rm", "-e", "AEROBEE_ADVERTISED=a:b:c", IMAGE, "broker")
    assert "ended with status 2" in str(caught.value)


def _log(container: str) -> str:
    import subprocess

    from tests.deploy.docker import DAEMON

    done = subprocess.run([DAEMON, "docker", "logs", container], capture_output=True, text=True, check=True)
    return done.stdout + done.stderr
