"""Servers under test as real processes, RocketMQ's and ours alike, and RocketMQ's clients.

`NameServer` and `Broker` start either product ("rocketmq", of a broker also NEXT, or "aerobee") from the same configuration keys, wait until it
serves, and stop it by SIGTERM or SIGKILL. `Driver` is the JVM that runs Java clients and mqadmin (java/Driver.java).
`cpp_send`, `cpp_consume` and `CppTransactions` run the C++ client. Everything listens on 127.0.0.1 and writes below a
temporary directory.
"""

from __future__ import annotations

import abc
import itertools
import json
import os
import pathlib
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

from tests.ports import free_broker_port
from tests.waiting import wait_for

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CACHE = pathlib.Path(os.environ.get("AEROBEE_INTEROP_DIR", ROOT / ".interop"))
CLASS_PATH = f"{CACHE / 'classes'}:{CACHE / 'jars'}/*"
NEXT = "rocketmq-5.5.1"  # a kind of server: broker and controller of that release
CLASS_PATHS = {"rocketmq": CLASS_PATH, NEXT: f"{CACHE / 'jars-next'}/*"}
GRPC_CLASS_PATH = (
    f"{CACHE / 'classes-grpc'}:{CACHE / 'jars-grpc'}/*:{CACHE / 'jars' / 'fastjson2-2.0.59.jar'}"
)
GO_CLIENT = CACHE / "go-client"
# The official gRPC clients with one program each: {"scenario", "outcome"} in lines of JSON. Java and Python have more scenarios.
GRPC_PROGRAMS: dict[str, list[Any]] = {
    "go": [CACHE / "go-grpc-client"],
    "node": ["node", HERE / "node-grpc" / "scenarios.js"],
    "rust": [CACHE / "rust-grpc-client"],
}
NODE_MODULES = CACHE / "node-grpc" / "node_modules"
OLD_CLASS_PATH = f"{CACHE / 'classes-old'}:{CACHE / 'jars-old'}/*"
GRPC_PYTHON = CACHE / "grpc-venv" / "bin" / "python"
CPP_PYTHON = CACHE / "cpp-venv" / "bin" / "python"
# Our command line; AEROBEE_INTEROP_CLI may name another one, such as that of an installed wheel.
AEROBEE = shlex.split(os.environ.get("AEROBEE_INTEROP_CLI", f"{sys.executable} -m aerobee.ops"))
# A loaded machine of two cores needs up to 20 s for a broker's JVM; six of our brokers together, a second of CPU each, were not
# there after 90 s at a load of 20.
START_TIMEOUT_S = 300.0
# Bodies of 4 MiB through a broker: with 256 MiB of direct memory one failed to answer (OutOfMemoryError), and a consumer waited for ever.
JAVA = [
    "java", "-Xms64m", "-Xmx320m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:MaxDirectMemorySize=768m",
    "-Xshare:auto", "-XX:-UsePerfData", "-Dcom.rocketmq.remoting.client.connect.timeout=60000",
    *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("java.nio", "java.lang", "sun.nio.ch", "jdk.internal.ref")),
]  # fmt: skip

# The programs of docs/grpc-clients.md: each sends a message to the topic `orders` and receives it. Argument: the endpoint.
GRPC_HELLOS: dict[str, list[Any]] = {
    "java": [*JAVA, "-cp", GRPC_CLASS_PATH, "Hello"],
    "go": [CACHE / "go-grpc-hello"],
    "python": [GRPC_PYTHON, HERE / "grpc" / "hello.py"],
    "node": ["node", HERE / "node-grpc" / "hello.js"],
    "rust": [CACHE / "rust-grpc-hello"],
}

# Small files, so that a few messages already roll; generous queue times, because test machines are busy.
BROKER_CONFIG = {
    "brokerClusterName": "DefaultCluster",
    "brokerName": "broker-a",
    "brokerId": "0",
    "brokerIP1": "127.0.0.1",
    "autoCreateTopicEnable": "true",
    "mappedFileSizeCommitLog": str(1 << 20),
    "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": "5000",
    "maxIndexNum": "20000",
    "mappedFileSizeTimerLog": "65520",
    "waitTimeMillsInSendQueue": "10000",
    "waitTimeMillsInPullQueue": "30000",
    "osPageCacheBusyTimeOutMills": "30000",
    "registerNameServerPeriod": "10000",
    "diskMaxUsedSpaceRatio": "95",
    "flushConsumerOffsetInterval": "1000",
}


def missing_pieces() -> list[str]:
    """What scripts/setup-interop has still to make."""
    needed = (
        CACHE / "jars" / "rocketmq-broker-5.5.0.jar", CACHE / "jars" / "rocketmq-proxy-5.5.0.jar",
        CACHE / "classes" / "Driver.class", CACHE / "classes" / "SettingsList.class", CACHE / "classes" / "BodyParser.class",
        CACHE / "classes-grpc" / "GrpcScenarios.class", CACHE / "classes-old" / "OldClient.class",
        CPP_PYTHON, GRPC_PYTHON, GO_CLIENT,
    )  # fmt: skip
    missing = [str(path) for path in needed if not path.exists()]
    return missing + ([] if shutil.which("java") else ["java"])


def call(address: str, code: int, ext: dict[str, Any], body: bytes = b"") -> tuple[dict[str, Any], bytes]:
    """One remoting call in JSON, made without any of the code under test. Returns (header, body)."""
    host, port = address.rsplit(":", 1)
    header = json.dumps(
        {"code": code, "language": "JAVA", "version": 513, "opaque": 7, "flag": 0, "extFields": ext}
    ).encode()
    with socket.create_connection((host, int(port)), timeout=60) as link:
        link.sendall(struct.pack(">iI", 4 + len(header) + len(body), len(header)) + header + body)
        stream = link.makefile("rb")
        total, header_size = struct.unpack(">ii", stream.read(8))
        header_size &= 0xFFFFFF
        data = stream.read(total - 4)
    return json.loads(data[:header_size]), data[header_size:]


def routed_brokers(namesrv: str, topic: str) -> dict[str, str]:
    """{broker name: address of its master} in the route of `topic`; empty when there is no route."""
    try:
        header, body = call(namesrv, 105, {"topic": topic, "acceptStandardJsonOnly": "true"})
    except OSError:
        return {}
    if header["code"] != 0:
        return {}
    return {data["brokerName"]: data["brokerAddrs"].get("0", "") for data in json.loads(body)["brokerDatas"]}


class Server(abc.ABC):
    """A process with a log file, started again as often as wanted on the same port and directory."""

    def __init__(self, kind: str, root: pathlib.Path, name: str, port: int | None = None) -> None:
        self.kind = kind
        self.name = name
        self.root = root
        self.root.mkdir(parents=True, exist_ok=True)
        self.port = port or free_broker_port()
        self.address = f"127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None
        self.log = root / f"{name}.out"

    @abc.abstractmethod
    def command(self) -> list[str]:
        """What starts the process."""

    @abc.abstractmethod
    def is_ready(self) -> bool:
        """Whether it serves."""

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "HOME": str(self.root),
            "ROCKETMQ_HOME": str(self.root),
            "PYTHONPATH": str(ROOT),
        }

    def start(self, *, wait: bool = True) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(), stdout=log, stderr=subprocess.STDOUT, cwd=self.root, env=self._environment()
            )
        if wait:
            self.wait_ready()

    def wait_ready(self) -> None:
        def probe() -> bool:
            assert self.process is not None
            if self.process.poll() is not None:
                raise AssertionError(
                    f"{self.kind} {self.name} ended with {self.process.returncode}:\n{self.tail()}"
                )
            return self.is_ready()

        try:
            wait_for(f"{self.kind} {self.name} to serve", probe, START_TIMEOUT_S)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.tail()}") from None

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]

    def stop(self) -> None:
        """SIGTERM, and wait for a clean end."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL: nothing is flushed, nothing said goodbye to."""
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(number)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(60)
            raise AssertionError(f"{self.kind} {self.name} did not end within 60 s:\n{self.tail()}") from None


def write_config(path: pathlib.Path, values: dict[str, str]) -> pathlib.Path:
    path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    return path


class NameServer(Server):
    def __init__(self, kind: str, root: pathlib.Path, name: str = "nameserver", **config: str) -> None:
        super().__init__(kind, root, name)
        self.config = {"listenPort": str(self.port), "kvConfigPath": str(root / "kvConfig.json"), **config}

    def command(self) -> list[str]:
        file = str(write_config(self.root / f"{self.name}.conf", self.config))
        if self.kind == "aerobee":
            return [*AEROBEE, "nameserver", "-c", file]
        return [
            *JAVA, f"-Duser.home={self.root}", f"-Drocketmq.home.dir={self.root}", "-cp", CLASS_PATH,
            "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", file,
        ]  # fmt: skip

    def is_ready(self) -> bool:
        try:
            call(self.address, 105, {"topic": "NoSuchTopic"})
        except OSError:
            return False
        return True


class Broker(Server):
    def __init__(
        self,
        kind: str,
        root: pathlib.Path,
        namesrv: str,
        *,
        store: pathlib.Path | None = None,
        port: int | None = None,
        **config: str,
    ) -> None:
        self.broker_name = config.get("brokerName", BROKER_CONFIG["brokerName"])
        super().__init__(kind, root, f"{kind}-{self.broker_name}", port)
        self.namesrv = namesrv
        self.store = store or root / "store"
        self.config = {
            **BROKER_CONFIG,
            "listenPort": str(self.port),
            "haListenPort": str(self.port + 1),
            "namesrvAddr": namesrv,
            "storePathRootDir": str(self.store),
            "storePathCommitLog": str(self.store / "commitlog"),
            **config,
        }

    def command(self) -> list[str]:
        file = str(write_config(self.root / f"{self.name}.conf", self.config))
        if self.kind == "aerobee":
            return [*AEROBEE, "broker", "-c", file]
        return [
            *JAVA, f"-Duser.home={self.root}", f"-Drocketmq.home.dir={self.root}", "-cp", CLASS_PATHS[self.kind],
            "org.apache.rocketmq.broker.BrokerStartup", "-c", file,
        ]  # fmt: skip

    def is_ready(self) -> bool:
        # Every broker registers a topic with its own name.
        if not all(
            routed_brokers(each, self.broker_name).get(self.broker_name) == self.address
            for each in self.namesrv.split(";")
        ):
            return False
        try:
            call(self.address, 28, {})
        except OSError:
            return False
        return True


class Controller(Server):
    """One controller of a quorum; by itself the whole of it."""

    def __init__(
        self, kind: str, root: pathlib.Path, peers: str = "", own_id: str = "n0", port: int | None = None
    ) -> None:
        super().__init__(kind, root, f"{kind}-controller-{own_id}", port)
        self.config = {
            "controllerDLegerGroup": "group1",
            "controllerDLegerPeers": peers or f"{own_id}-{self.address}",
            "controllerDLegerSelfId": own_id,
            "controllerStorePath": str(root / f"controller-{own_id}"),
            "configStorePath": str(root / f"controller-{own_id}.properties"),
            "enableElectUncleanMaster": "false",
            "notifyBrokerRoleChanged": "true",
        }

    def command(self) -> list[str]:
        file = str(write_config(self.root / f"{self.name}.conf", self.config))
        if self.kind == "aerobee":
            return [*AEROBEE, "controller", "-c", file]
        return [
            *JAVA, f"-Duser.home={self.root}", f"-Drocketmq.home.dir={self.root}", "-cp", CLASS_PATHS[self.kind],
            "org.apache.rocketmq.controller.ControllerStartup", "-c", file,
        ]  # fmt: skip

    def is_ready(self) -> bool:
        try:
            header, _ = call(self.address, 1005, {})
        except OSError:
            return False
        return bool(header.get("extFields", {}).get("controllerLeaderAddress"))


class Proxy(Server):
    """RocketMQ's proxy in cluster mode, which speaks gRPC to clients and the remoting protocol to brokers."""

    def __init__(self, root: pathlib.Path, namesrv: str) -> None:
        super().__init__("rocketmq", root, "proxy")
        self._remoting_port = free_broker_port()
        self._config = {
            "rocketMQClusterName": "DefaultCluster",
            "proxyMode": "CLUSTER",
            "namesrvAddr": namesrv,
            "grpcServerPort": self.port,
            "remotingListenPort": self._remoting_port,
            "useEndpointPortFromRequest": True,
            "maxMessageSize": 4 << 20,
        }

    def command(self) -> list[str]:
        file = self.root / "rmq-proxy.json"
        file.write_text(json.dumps(self._config))
        return [
            *JAVA, "-Xmx640m", f"-Duser.home={self.root}", f"-Drocketmq.home.dir={self.root}",
            # A call that is late on a busy machine must not take all others of its connection along.
            "-Dcom.rocketmq.remoting.client.closeSocketIfTimeout=false",
            "-cp", CLASS_PATH, "org.apache.rocketmq.proxy.ProxyStartup", "-pm", "cluster", "-pc", str(file),
        ]  # fmt: skip

    def is_ready(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0 and "startup successfully" in self.tail()


def grpc_scenarios(
    language: str, endpoint: str, prefix: str, root: pathlib.Path, *wanted: str
) -> dict[str, str]:
    """Run the official client of a language at an endpoint; return {scenario: outcome}."""
    arguments = [endpoint, prefix, *wanted]
    command: list[Any] = [GRPC_PYTHON, HERE / "grpc" / "scenarios.py", *arguments]
    if language in GRPC_PROGRAMS:
        command = [*GRPC_PROGRAMS[language], *arguments]
    elif language == "java":
        command = [
            *JAVA,
            "-Xmx640m",
            f"-Duser.home={root}",
            "-cp",
            GRPC_CLASS_PATH,
            "GrpcScenarios",
            *arguments,
        ]
    with (root / f"{language}.err").open("wb") as errors:
        result = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=errors, timeout=1200, check=False,
            env={**os.environ, "HOME": str(root), "NODE_PATH": str(NODE_MODULES)},
        )  # fmt: skip
    lines = [json.loads(line) for line in result.stdout.splitlines() if line.startswith(b"{")]
    return {line["scenario"]: line["outcome"] for line in lines}


class Cluster:
    """A NameServer and brokers of one product."""

    def __init__(self, kind: str, root: pathlib.Path, *, brokers: int = 1, **config: str) -> None:
        self.kind = kind
        self.root = root
        # Maven Central has no NameServer of the release after 5.5.0.
        self.nameserver = NameServer("aerobee" if kind == NEXT else kind, root / "nameserver")
        self.namesrv = self.nameserver.address
        self.brokers = [
            Broker(kind, root / f"broker-{suffix}", self.namesrv, brokerName=f"broker-{suffix}", **config)
            for suffix in "abcd"[:brokers]
        ]

    @property
    def broker(self) -> Broker:
        return self.brokers[0]

    def start(self) -> Cluster:
        self.nameserver.start()
        for broker in self.brokers:
            broker.start(wait=False)
        for broker in self.brokers:
            broker.wait_ready()
        return self

    def stop(self) -> None:
        """Stop ours cleanly, for a clean stop is part of what is tested; a real broker takes 15 s for it."""
        failures = []
        for server in (*self.brokers, self.nameserver):
            try:
                server.stop() if self.kind == "aerobee" else server.kill()
            except AssertionError as error:
                failures.append(str(error))
        assert not failures, failures


class DriverError(Exception):
    """The Java side threw; the text names the exception and its causes."""


class Driver:
    """Calls to java/Driver.java. Thread-safe; `call` waits for its own answer only."""

    def __init__(self, root: pathlib.Path, *jvm_options: str, within: Sequence[str] = ()) -> None:
        """`within` is a command that runs the JVM elsewhere: in a network namespace, in a container."""
        root.mkdir(parents=True, exist_ok=True)
        self.log = root / "driver.log"
        self._errors = self.log.open("wb")
        java = [os.path.realpath(shutil.which("java") or "java"), *JAVA[1:]]
        self._process = subprocess.Popen(
            [*within, *java, "-Xmx640m", f"-Duser.home={root}", f"-Drocketmq.home.dir={root}",
             f"-Drocketmq.client.localOffsetStoreDir={root / 'offsets'}", *jvm_options, "-cp", CLASS_PATH, "Driver"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, cwd=root,
            env={**os.environ, "HOME": str(root), "ROCKETMQ_HOME": str(root)},
        )  # fmt: skip
        self._answers: dict[int, dict[str, Any]] = {}
        self._arrived = threading.Condition()
        self._ids = itertools.count(1)
        self._names = itertools.count(1)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self.call("ping") == "pong"

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            with self._arrived:
                self._answers[answer["id"]] = answer
                self._arrived.notify_all()
        with self._arrived:
            self._arrived.notify_all()

    def call(self, op: str, *, wait_s: float = 120.0, **arguments: Any) -> Any:
        """Perform one operation and return its result; raises DriverError."""
        with self._arrived:
            number = next(self._ids)
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"id": number, "op": op, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
            if not self._arrived.wait_for(
                lambda: number in self._answers or self._process.poll() is not None, wait_s
            ):
                raise AssertionError(f"the Java driver did not answer {op} {arguments} within {wait_s} s")
            if number not in self._answers:
                raise AssertionError(f"the Java driver ended: {self.log.read_text(errors='replace')[-2000:]}")
            answer = self._answers.pop(number)
        if not answer["ok"]:
            raise DriverError(f"{op}: {answer['error']}")
        return answer.get("result")

    def admin(self, namesrv: str, *arguments: str, with_errors: bool = False) -> str:
        """Run one mqadmin command in process; returns what it printed to standard output.

        `with_errors` adds the exceptions that it printed to standard error, without their stack traces.
        """
        begin = time.monotonic()
        result = self.call("admin", namesrv=namesrv, args=list(arguments))
        with self.log.open("a") as log:
            log.write(
                f"$ mqadmin {' '.join(arguments)}   # {time.monotonic() - begin:.2f} s\n{result['out']}{result['err']}\n"
            )
        errors = [
            line for line in result["err"].splitlines(keepends=True) if not line.startswith(("\t", "SLF4J"))
        ]
        return str(result["out"]) + ("".join(errors) if with_errors else "")

    def unique(self, prefix: str) -> str:
        return f"{prefix}{next(self._names)}"

    def producer(self, namesrv: str, **options: Any) -> JavaClient:
        return self._client("producer", "PG", namesrv, options)

    def push(self, namesrv: str, topic: str, **options: Any) -> JavaClient:
        return self._client("push", "CG", namesrv, {"topic": topic, **options})

    def lite(self, namesrv: str, **options: Any) -> JavaClient:
        return self._client("lite", "LG", namesrv, options)

    def pull(self, namesrv: str, **options: Any) -> JavaClient:
        return self._client("pull", "PL", namesrv, options)

    def _client(self, family: str, prefix: str, namesrv: str, options: dict[str, Any]) -> JavaClient:
        name = self.unique(f"{family}-")
        group = options.pop("group", None) or self.unique(f"{prefix}_java")
        self.call(f"{family}.start", name=name, group=group, namesrv=namesrv, **options)
        return JavaClient(self, family, name, group)

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(60)
        self._errors.close()


class JavaClient:
    """One Java client inside the driver; leaving the `with` block shuts it down."""

    def __init__(self, driver: Driver, family: str, name: str, group: str) -> None:
        self._driver, self._family, self._name, self.group = driver, family, name, group
        self._running = True

    def __enter__(self) -> JavaClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        if self._running:
            self._running = False
            self._driver.call(f"{self._family}.stop", name=self._name)

    def call(self, op: str, **arguments: Any) -> Any:
        return self._driver.call(f"{self._family}.{op}", name=self._name, **arguments)

    def send(self, messages: Sequence[dict[str, Any]], mode: str = "sync") -> list[dict[str, Any]]:
        result: list[dict[str, Any]] = self.call("send", mode=mode, messages=list(messages))
        return result

    def received(self, count: int = 0, timeout_s: float = 30.0) -> list[dict[str, Any]]:
        """All messages so far, after waiting for `count` of them."""
        result: list[dict[str, Any]] = self.call("received", count=count, timeout_ms=int(timeout_s * 1000))
        return result

    def queues(self, topic: str) -> set[tuple[str, int]]:
        """The queues that a push consumer owns, as (broker name, queue id)."""
        return {(broker, queue) for _, broker, queue in self.call("queues", topic=topic)}


def cpp_send(
    namesrv: str, topic: str, mode: str, lines: Iterable[str], root: pathlib.Path
) -> list[dict[str, Any]]:
    text = "".join(f"{line}\n" for line in lines)
    result = subprocess.run(
        [CPP_PYTHON, HERE / "cpp" / "produce.py", namesrv, topic, mode],
        input=text.encode(), capture_output=True, timeout=120, env={**os.environ, "HOME": str(root)}, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr.decode()[-2000:]
    return [json.loads(line) for line in result.stdout.splitlines() if line.startswith(b"{")]


def cpp_consume(
    namesrv: str, topic: str, group: str, count: int, root: pathlib.Path,
    *, tags: str = "*", order: str = "concurrent", timeout_s: float = 60.0,
) -> list[dict[str, Any]]:  # fmt: skip
    result = subprocess.run(
        [CPP_PYTHON, HERE / "cpp" / "consume.py", namesrv, topic, group, str(count), str(timeout_s), tags, order],
        capture_output=True, timeout=timeout_s + 60, env={**os.environ, "HOME": str(root)}, check=False,
    )  # fmt: skip
    messages = [json.loads(line) for line in result.stdout.splitlines() if line.startswith(b"{")]
    assert result.returncode == 0, f"{len(messages)} of {count} messages: {result.stderr.decode()[-2000:]}"
    return messages


class CppTransactions:
    """A TransactionMQProducer of the C++ client, while the block runs (cpp/transact.py). States: COMMIT, ROLLBACK, UNKNOWN."""

    def __init__(self, namesrv: str, topic: str, group: str, root: pathlib.Path) -> None:
        self._command = [CPP_PYTHON, HERE / "cpp" / "transact.py", namesrv, topic, group]
        self._root = root
        self._killed = False
        self.executed: list[str] = []
        self.checked: list[str] = []

    def __enter__(self) -> CppTransactions:
        self._errors = (self._root / "transact.err").open("w+")
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
            env={**os.environ, "HOME": str(self._root)},
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                told = json.loads(line)
                self.executed += [told["executed"]] if "executed" in told else []
                self.checked += [told["checked"]] if "checked" in told else []

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            status = self._process.wait(60)
        finally:
            self._process.kill()
            self._process.wait()
            self._reader.join(60)
            self._errors.seek(0)
            errors = self._errors.read()
            self._errors.close()
        assert self._killed or status == 0, f"the producer ended with {status}: {errors[-2000:]}"

    def kill(self) -> None:
        self._killed = True
        self._process.kill()

    def send(self, body: str, state: str, *, answer: str = "UNKNOWN") -> None:
        """Send a transaction whose local work returns `state`; a check of it is answered with `answer`."""
        self._write({"body": body, "state": state, "answer": answer})

    def answer(self, body: str, answer: str) -> None:
        """Answer a check of another producer's transaction so."""
        self._write({"body": body, "answer": answer})

    def _write(self, wanted: dict[str, str]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(wanted) + "\n")
        self._process.stdin.flush()


def by_queue(messages: Iterable[dict[str, Any]]) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """Messages grouped by queue, in the order in which they came."""
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for message in messages:
        groups.setdefault((message.get("broker") or "", message["queue"]), []).append(message)
    return groups


def commit_offset(puller: JavaClient, queue_fields: dict[str, Any], offset: int) -> None:
    """Commit until the broker has the offset: RocketMQ's client sends one-way requests, whose loss has no answer."""

    def is_committed() -> bool:
        puller.call("commit", **queue_fields, offset=offset)
        return bool(puller.call("committed", **queue_fields) == offset)

    wait_for(f"the committed offset {offset} of {queue_fields}", is_committed)
