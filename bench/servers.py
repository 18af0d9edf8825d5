"""Servers to be measured: each starts in a separate directory on loopback, and stops by its own process ids."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from aerobee.testing.ports import free_broker_port

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent
ROCKETMQ_LIB = Path(os.environ.get("AEROBEE_ROCKETMQ_LIB", REPOSITORY / ".interop" / "jars"))
START_TIMEOUT_S = 60.0
# On a busy machine both products refuse sends that waited for 200 ms.
PATIENT = {"waitTimeMillsInSendQueue": "10000"}
STOP_TIMEOUT_S = 20.0
# Another checkout of Aerobee with its own .venv, the servers "before" and "before-python".
BEFORE = "AEROBEE_BENCH_BEFORE"


class ServerFailed(Exception):
    """A server did not start; the text holds the end of its log."""


@dataclass
class Server:
    """A started server: the address to load, the processes whose CPU counts."""

    name: str
    port: int
    directory: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    nameserver_port: int = 0
    environment: Mapping[str, str] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self.processes]

    def spawn(self, command: list[str], log: str, environment: Mapping[str, str] | None = None) -> None:
        with (self.directory / log).open("ab") as output:
            self.processes.append(
                subprocess.Popen(
                    command,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    cwd=self.directory,
                    env={**os.environ, **(environment or {})},
                )
            )

    def wait_for_port(self, port: int, log: str) -> None:
        """Return when something listens. Raises ServerFailed with the log's end when a process ended before."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                return
            if any(process.poll() is not None for process in self.processes):
                break
            time.sleep(0.05)
        tail = (self.directory / log).read_text(errors="replace")[-2000:]
        raise ServerFailed(f"{self.name} does not listen on port {port}; the end of its log:\n{tail}")

    def wait_for_text(self, text: str, log: str) -> None:
        """Return when the log says so; a broker says it when it has registered. Raises ServerFailed."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while text not in (content := (self.directory / log).read_text(errors="replace")):
            if time.monotonic() > deadline:
                raise ServerFailed(
                    f"{self.name} does not say {text!r}; the end of its log:\n{content[-2000:]}"
                )
            time.sleep(0.05)

    def restart(self, log: str, *, kill: bool) -> None:
        """End the process that was started last, by SIGKILL or SIGTERM, start it again, wait until it listens."""
        process = self.processes.pop()
        process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        process.wait(STOP_TIMEOUT_S)
        self.spawn([str(part) for part in process.args], log, self.environment)  # type: ignore[union-attr]
        self.wait_for_port(self.port, log)

    def stop(self, *, kill: bool = False) -> None:
        """End the processes, last started first."""
        for process in reversed(self.processes):
            if process.poll() is None:
                process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes.clear()


def broker_ports(count: int) -> list[int]:
    """Ports with the broker's other ports free (port - 2, port + 1)."""
    return [free_broker_port() for _ in range(count)]


@contextlib.contextmanager
def scratch(name: str) -> Iterator[Path]:
    """A directory that is gone afterwards."""
    directory = Path(tempfile.mkdtemp(prefix=f"bench-{name}-", dir=os.environ.get("AEROBEE_BENCH_DIR")))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def broker_properties(
    directory: Path, port: int, *, sync_flush: bool, extra: Mapping[str, str] | None
) -> Path:
    """Write a broker.conf that both products read."""
    settings = {
        "brokerClusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "brokerId": "0",
        "brokerIP1": "127.0.0.1",
        "listenPort": str(port),
        "storePathRootDir": str(directory / "store"),
        "storePathCommitLog": str(directory / "store" / "commitlog"),
        "flushDiskType": "SYNC_FLUSH" if sync_flush else "ASYNC_FLUSH",
        "autoCreateTopicEnable": "true",
        **(extra or {}),
    }
    path = directory / "broker.conf"
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return path


@contextlib.contextmanager
def aerobee(
    *,
    name: str = "aerobee",
    sync_flush: bool = False,
    extra: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    python: str = sys.executable,
) -> Iterator[Server]:
    """A nameserver and a broker of this checkout, or of that which `python` belongs to, each a process."""
    with scratch("aerobee") as directory:
        nameserver_port, port = broker_ports(2)
        server = Server(name, port, directory, nameserver_port=nameserver_port, environment=environment)
        (directory / "namesrv.conf").write_text(
            f"listenPort={nameserver_port}\nbindAddress=127.0.0.1\nkvConfigPath={directory}/kvConfig.json\n"
        )
        conf = broker_properties(directory, port, sync_flush=sync_flush, extra=extra)
        command = [python, "-m", "aerobee.ops"]
        try:
            server.spawn(
                [*command, "nameserver", "-c", str(directory / "namesrv.conf")], "namesrv.log", environment
            )
            server.wait_for_port(nameserver_port, "namesrv.log")
            server.spawn(
                [*command, "broker", "-c", str(conf), "-n", f"127.0.0.1:{nameserver_port}"],
                "broker.log",
                environment,
            )
            server.wait_for_port(port, "broker.log")
            server.wait_for_text("listens at", "broker.log")
            yield server
        finally:
            server.stop()


def aerobee_python(
    *, sync_flush: bool = False, extra: Mapping[str, str] | None = None
) -> contextlib.AbstractContextManager[Server]:
    """The same with the fast path in pure Python, also where the native one is installed."""
    return aerobee(
        name="aerobee-python", sync_flush=sync_flush, extra=extra, environment={"AEROBEE_FAST_PATH": "python"}
    )


def before(
    *,
    name: str = "before",
    sync_flush: bool = False,
    extra: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> contextlib.AbstractContextManager[Server]:
    """A nameserver and a broker of the checkout that $AEROBEE_BENCH_BEFORE names. Raises ServerFailed when it names none."""
    python = before_python_of(os.environ.get(BEFORE, ""))
    return aerobee(name=name, sync_flush=sync_flush, extra=extra, environment=environment, python=python)


def before_python(
    *, sync_flush: bool = False, extra: Mapping[str, str] | None = None
) -> contextlib.AbstractContextManager[Server]:
    """The same in pure Python, by the present and the former name of the variable."""
    environment = {"AEROBEE_FAST_PATH": "python", "AEROBEE_LANE": "python"}
    return before(name="before-python", sync_flush=sync_flush, extra=extra, environment=environment)


def before_python_of(checkout: str) -> str:
    """The interpreter of another checkout. Raises ServerFailed."""
    python = Path(checkout or ".").absolute() / ".venv" / "bin" / "python"
    if not checkout or not python.exists():
        raise ServerFailed(
            f"{BEFORE} names no checkout with a .venv (it is {checkout!r}): git worktree add ../before COMMIT, and make venv there"
        )
    return str(python)


@contextlib.contextmanager
def aerobee_up() -> Iterator[Server]:
    """`aerobee up`: NameServer and broker in one process, as a single machine runs them."""
    with scratch("aerobee-up") as directory:
        nameserver_port, port = broker_ports(2)
        server = Server("aerobee-up", port, directory, nameserver_port=nameserver_port)
        command = [sys.executable, "-m", "aerobee.ops", "up", "--data", str(directory / "data")]
        ports = ["--port", str(port), "--nameserver-port", str(nameserver_port)]
        try:
            server.spawn([*command, *ports], "up.log")
            server.wait_for_port(port, "up.log")
            yield server
        finally:
            server.stop()


@contextlib.contextmanager
def rocketmq(
    *, sync_flush: bool = False, extra: Mapping[str, str] | None = None, heap: str = "2g"
) -> Iterator[Server]:
    """A RocketMQ 5.5.0 nameserver and broker from the jars that scripts/setup-interop fetched."""
    if not ROCKETMQ_LIB.is_dir():
        raise ServerFailed(
            f"{ROCKETMQ_LIB} is missing: run scripts/setup-interop, or set AEROBEE_ROCKETMQ_LIB"
        )
    with scratch("rocketmq") as directory:
        nameserver_port, port = broker_ports(2)
        server = Server("rocketmq", port, directory, nameserver_port=nameserver_port)
        (directory / "namesrv.conf").write_text(f"listenPort={nameserver_port}\nbindAddress=127.0.0.1\n")
        conf = broker_properties(directory, port, sync_flush=sync_flush, extra=extra)
        (directory / "conf").mkdir()
        java = [
            "java",
            f"-Drocketmq.home.dir={directory}",
            f"-Duser.home={directory}",
            "-cp",
            f"{ROCKETMQ_LIB}/*",
        ]
        try:
            server.spawn(
                [
                    *java,
                    "-Xmx256m",
                    "org.apache.rocketmq.namesrv.NamesrvStartup",
                    "-c",
                    str(directory / "namesrv.conf"),
                ],
                "namesrv.log",
            )
            server.wait_for_port(nameserver_port, "namesrv.log")
            flags = [f"-Xms{heap}", f"-Xmx{heap}", "-XX:+UseG1GC"]
            server.spawn(
                [
                    *java,
                    *flags,
                    "org.apache.rocketmq.broker.BrokerStartup",
                    "-c",
                    str(conf),
                    "-n",
                    f"127.0.0.1:{nameserver_port}",
                ],
                "broker.log",
            )
            server.wait_for_port(port, "broker.log")
            server.wait_for_text("boot success", "broker.log")
            yield server
        finally:
            server.stop()


@contextlib.contextmanager
def rocketmq_proxy() -> Iterator[tuple[Server, int]]:
    """RocketMQ's nameserver and broker with its gRPC proxy before them; yields the broker and the proxy's port."""
    jars = ROCKETMQ_LIB.parent / "proxy-jars"
    if not jars.is_dir():
        raise ServerFailed(f"{jars} is missing: run scripts/setup-bench")
    with rocketmq(heap="1g") as broker, scratch("proxy") as directory:
        port, remoting_port = broker_ports(2)
        server = Server("proxy", port, directory)
        (directory / "conf").mkdir()
        settings = {
            "rocketMQClusterName": "DefaultCluster",
            "namesrvAddr": f"127.0.0.1:{broker.nameserver_port}",
            "grpcServerPort": port,
            "remotingListenPort": remoting_port,
            "proxyMode": "CLUSTER",
        }
        path = directory / "conf" / "rmq-proxy.json"
        path.write_text(json.dumps(settings))
        java = ["java", f"-Drocketmq.home.dir={directory}", f"-Duser.home={directory}", "-cp", f"{jars}/*"]
        try:
            server.spawn(
                [*java, "-Xmx1g", "org.apache.rocketmq.proxy.ProxyStartup", "-pc", str(path)], "proxy.log"
            )
            server.wait_for_port(port, "proxy.log")
            yield broker, port
        finally:
            server.stop()


@contextlib.contextmanager
def rocketmq_local_proxy(
    *, extra: Mapping[str, str] | None = None, heap: str = "2g"
) -> Iterator[tuple[Server, int]]:
    """RocketMQ's nameserver, and its gRPC proxy in local mode: the broker runs in the proxy's process. Yields it and the proxy's port;
    `Server.port` is the broker's."""
    if not ROCKETMQ_LIB.is_dir():
        raise ServerFailed(
            f"{ROCKETMQ_LIB} is missing: run scripts/setup-interop, or set AEROBEE_ROCKETMQ_LIB"
        )
    with scratch("rocketmq-local") as directory:
        nameserver_port, port, grpc_port, remoting_port = broker_ports(4)
        server = Server("rocketmq-local", port, directory, nameserver_port=nameserver_port)
        (directory / "namesrv.conf").write_text(f"listenPort={nameserver_port}\nbindAddress=127.0.0.1\n")
        conf = broker_properties(directory, port, sync_flush=False, extra=extra)
        settings = {
            "rocketMQClusterName": "DefaultCluster",
            "namesrvAddr": f"127.0.0.1:{nameserver_port}",
            "grpcServerPort": grpc_port,
            "remotingListenPort": remoting_port,
            "proxyMode": "LOCAL",
        }
        path = directory / "rmq-proxy.json"
        path.write_text(json.dumps(settings))
        (directory / "conf").mkdir()
        home = [f"-Drocketmq.home.dir={directory}", f"-Duser.home={directory}"]
        java = ["java", *home, "-cp", f"{ROCKETMQ_LIB}/*"]
        try:
            names = ["org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(directory / "namesrv.conf")]
            server.spawn([*java, "-Xmx256m", *names], "namesrv.log")
            server.wait_for_port(nameserver_port, "namesrv.log")
            flags = [f"-Xms{heap}", f"-Xmx{heap}", "-XX:+UseG1GC"]
            proxy = [
                "org.apache.rocketmq.proxy.ProxyStartup",
                "-pm",
                "local",
                "-bc",
                str(conf),
                "-pc",
                str(path),
            ]
            server.spawn([*java, *flags, *proxy, "-n", f"127.0.0.1:{nameserver_port}"], "proxy.log")
            server.wait_for_port(port, "proxy.log")
            server.wait_for_port(grpc_port, "proxy.log")
            server.wait_for_text("startup successfully", "proxy.log")
            yield server, grpc_port
        finally:
            server.stop()


@contextlib.contextmanager
def null_server() -> Iterator[Server]:
    """The minimum, see null_server.py."""
    with scratch("null") as directory:
        (port,) = broker_ports(1)
        server = Server("null", port, directory)
        try:
            server.spawn([sys.executable, str(HERE / "null_server.py"), str(port)], "null.log")
            server.wait_for_port(port, "null.log")
            yield server
        finally:
            server.stop()


@contextlib.contextmanager
def redis() -> Iterator[Server]:
    """Redis of Debian, streams in memory with its default persistence switched off for sync, on for AOF every second."""
    with scratch("redis") as directory:
        (port,) = broker_ports(1)
        server = Server("redis", port, directory)
        try:
            server.spawn(
                [
                    "redis-server",
                    "--port",
                    str(port),
                    "--bind",
                    "127.0.0.1",
                    "--dir",
                    str(directory),
                    "--appendonly",
                    "yes",
                    "--save",
                    "",
                ],
                "redis.log",
            )
            server.wait_for_port(port, "redis.log")
            yield server
        finally:
            server.stop()


@contextlib.contextmanager
def nats() -> Iterator[Server]:
    """NATS with JetStream, file storage, of Debian."""
    with scratch("nats") as directory:
        (port,) = broker_ports(1)
        server = Server("nats", port, directory)
        try:
            server.spawn(
                ["nats-server", "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(directory)], "nats.log"
            )
            server.wait_for_port(port, "nats.log")
            yield server
        finally:
            server.stop()
