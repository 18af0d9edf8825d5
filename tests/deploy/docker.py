"""The dockerd of scripts/docker-daemon, docker compose, and RocketMQ's Java client on both sides of the containers' network."""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
from typing import Any

import docker as docker_sdk
from docker.errors import NotFound

from tests.interop import rocketmq

ROOT = pathlib.Path(__file__).resolve().parents[2]
DAEMON = ROOT / "scripts" / "docker-daemon"
COMPOSE_FILE = ROOT / "deploy" / "compose.yaml"
HERE_FILE = ROOT / "tests" / "deploy" / "compose-here.yaml"
IMAGE = "aerobee:dev"
SPARK_IMAGE = "aerobee-spark:dev"
JAVA_IMAGE = "aerobee-base/debian:12"  # a plain Debian; the JVM and the jars are this machine's, mounted
COMMAND_S = 300.0


def run(*command: object, timeout_s: float = COMMAND_S, check: bool = True, **environment: str) -> str:
    """Run a command to its end and return its standard output; a failure shows both streams."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**os.environ, **environment},
        check=False,
    )
    if check and done.returncode != 0:
        raise AssertionError(
            f"{' '.join(words)} ended with status {done.returncode}\n{done.stdout}\n{done.stderr}"
        )
    return done.stdout


def docker(*arguments: object, **options: Any) -> str:
    """The docker client."""
    return run(DAEMON, "docker", *arguments, **options)


def compose(*arguments: object, profiles: tuple[str, ...] = (), **options: Any) -> str:
    """docker compose of deploy/compose.yaml, with what it takes from registries out of this machine."""
    chosen = [word for profile in profiles for word in ("--profile", profile)]
    files = ("-f", COMPOSE_FILE, "-f", HERE_FILE)
    return docker(
        "compose",
        *files,
        *chosen,
        *arguments,
        AEROBEE_IMAGE=IMAGE,
        AEROBEE_DOCKER_SOCKET=socket_path(),
        **options,
    )


def socket_path() -> str:
    """Where the daemon listens."""
    return run(DAEMON, "socket").strip()


def on_the_host(*command: object, **options: Any) -> str:
    """Run a command where published ports are on 127.0.0.1."""
    return run(DAEMON, "inside", *command, **options)


def client() -> docker_sdk.DockerClient:
    """The SDK's client of the daemon; the caller closes it."""
    return docker_sdk.DockerClient(base_url=f"unix://{socket_path()}", timeout=int(COMMAND_S))


def health(container: str) -> str:
    """What docker says of a container: running and healthy, or its state."""
    with contextlib.closing(client()) as found:
        try:
            state = found.containers.get(container).attrs["State"]
        except NotFound as error:
            raise AssertionError(str(error)) from error
    return str(state.get("Health", {}).get("Status", state["Status"])) if state["Running"] else "stopped"


def driver_on_the_host(root: pathlib.Path) -> rocketmq.Driver:
    """RocketMQ's Java client on "the host" of the containers."""
    return rocketmq.Driver(root, within=(str(DAEMON), "inside"))


def driver_in_the_network(root: pathlib.Path, network: str) -> rocketmq.Driver:
    """RocketMQ's Java client in a container next to the brokers."""
    mounts = [
        f"{path}:{path}:ro"
        for path in ("/usr/lib/jvm", "/etc/java-17-openjdk")
        if pathlib.Path(path).exists()
    ]
    cache = rocketmq.CACHE.resolve()
    mounts += [f"{cache}:{rocketmq.CACHE}:ro", f"{root}:{root}"]
    root.mkdir(parents=True, exist_ok=True)
    volumes = [word for mount in mounts for word in ("-v", mount)]
    return rocketmq.Driver(
        root,
        within=(
            str(DAEMON), "docker", "run", "--rm", "-i", "--network", network, *volumes, "-w", str(root), JAVA_IMAGE,
        ),
    )  # fmt: skip
