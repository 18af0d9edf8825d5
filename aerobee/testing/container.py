"""AerobeeContainer: a whole cluster in one container of the image, for tests that want the image; needs the extra container.

    with AerobeeContainer(brokers=2) as aerobee:
        producer = Producer(aerobee.nameserver_address)

The container runs `aerobee up`. Brokers advertise addresses, so a port must have one number inside and outside: the container
takes free ports of this machine before it starts, publishes each under its own number, and takes others if one of them is in use by
then. Docker at another machine needs ports that are free there, and `advertise` if its name is not the one that Docker is reached by.
"""

from __future__ import annotations

import contextlib
import http.client
import random
import secrets
import socket
import time
from collections.abc import Mapping
from typing import Any, Self

from docker.errors import APIError, NotFound
from testcontainers.core.container import DockerContainer
from testcontainers.core.exceptions import ContainerStartException

from aerobee.errors import UsageError
from aerobee.host_port import join_address
from aerobee.testing.container_ports import ContainerPorts

IMAGE = "aerobee:0.1.0"
STARTUP_TIMEOUT_S = 180.0
PORT_TRIES = 5
PORTS_FROM, PORTS_TO = 20_000, 30_000  # below those that systems give to outgoing connections
POLL_S = 0.1
OPEN = {"adminOpen": "true"}  # clients of this machine have another address inside the container
LOG_CHARS = 4_000
READY = '"event":"ready"'
USER = "admin"
_START_CONSOLE = """
import json, os
from aerobee.console.users import hash_password
with open("/tmp/console-users.json", "w") as file:
    json.dump({os.environ["CONSOLE_USER"]: {"role": "admin", "password": hash_password(os.environ["CONSOLE_PASSWORD"])}}, file)
words = os.environ["CONSOLE_COMMAND"].split(" ")
os.execvp(words[0], words)
"""


class AerobeeContainer(DockerContainer):
    """A cluster in one container. Use it as a context manager, or by start() and stop(); what it stores ends with it.

    `brokers`: number of broker names; `replicas`: brokers of each name, and with more than one also three controllers, which elect
    the masters; `grpc`: publish the brokers' gRPC ports; `console`: serve the console with a password; `settings`: keys of the
    brokers (adminOpen=true unless they say otherwise); `advertise`: address of the published ports, as the clients see it (default: the machine that runs Docker). Other
    options are those of DockerContainer.
    """

    def __init__(
        self,
        image: str = IMAGE,
        *,
        brokers: int = 1,
        replicas: int = 1,
        grpc: bool = False,
        console: bool = False,
        settings: Mapping[str, str] | None = None,
        advertise: str | None = None,
        startup_timeout_s: float = STARTUP_TIMEOUT_S,
        **options: Any,
    ) -> None:
        if brokers < 1 or replicas < 1:
            raise UsageError(f"brokers={brokers}, replicas={replicas}: both must be at least 1")
        name = options.pop("name", None) or f"aerobee-{secrets.token_hex(6)}"
        super().__init__(image, name=name, **options)
        self._shape = (brokers, replicas)
        self._has_grpc, self._has_console = grpc, console
        self._settings = dict(settings or {})
        self._advertise = advertise
        self._startup_timeout_s = startup_timeout_s
        self._own_name = name
        self._cluster_ports: ContainerPorts | None = None
        self.console_password = secrets.token_urlsafe(12) if console else ""
        """Password of the user admin; empty without a console."""

    @property
    def nameserver_address(self) -> str:
        """Address of the NameServer for clients of this machine. Raises UsageError before the start."""
        return self._address(self._ports.nameserver)

    @property
    def broker_addresses(self) -> tuple[str, ...]:
        """Address of each broker, as brokers advertise it."""
        return tuple(map(self._address, self._ports.brokers))

    @property
    def controller_addresses(self) -> tuple[str, ...]:
        """Address of each controller; empty without replicas."""
        return tuple(map(self._address, self._ports.controllers))

    @property
    def grpc_addresses(self) -> tuple[str, ...]:
        """Address of each broker's gRPC port; empty without `grpc`."""
        return tuple(map(self._address, self._ports.grpc))

    @property
    def console_url(self) -> str:
        """URL of the console; empty without `console`."""
        port = self._ports.console
        return f"http://{self._address(port)}/" if port else ""

    def start(self) -> Self:
        """Start the container and wait until each broker is registered, and the NameServer answers at its published port.

        Raises ContainerStartException with the end of the log when the cluster ends or is not ready in time.
        """
        for tries_left in reversed(range(PORT_TRIES)):
            self._publish()
            try:
                super().start()
                break
            except APIError as error:
                self._remove()
                if not tries_left or not is_port_in_use(error):
                    raise
        try:
            self._wait()
        except BaseException:
            self._remove()
            raise
        return self

    def command(self, *words: str) -> str:
        """Run `aerobee WORDS…` in the container at its cluster and return the output. Raises UsageError with the output if it fails."""
        nameserver = f"127.0.0.1:{self._ports.nameserver}"
        done = self.get_wrapped_container().exec_run(["aerobee", *words, "--nameserver", nameserver])
        text: str = done.output.decode(errors="replace")
        if done.exit_code:
            raise UsageError(f"aerobee {' '.join(words)} ended with {done.exit_code}: {text.strip()}")
        return text

    @property
    def _ports(self) -> ContainerPorts:
        if self._cluster_ports is None:
            raise UsageError("the container is not started, so it has no addresses yet")
        return self._cluster_ports

    def _address(self, port: int) -> str:
        return join_address(self._host(), port)

    def _host(self) -> str:
        """The host of the published ports. An address, because brokers listen on IPv4 and localhost may be ::1."""
        host = self._advertise or self.get_docker_client().host()
        return "127.0.0.1" if host == "localhost" else host

    def _publish(self) -> None:
        """Choose ports, publish them, and make the command from them."""
        for port in self._cluster_ports.published if self._cluster_ports is not None else ():
            self.ports.pop(str(port), None)
        brokers, replicas = self._shape
        ports = self._cluster_ports = ContainerPorts.at(
            _free_first(ContainerPorts.size(brokers * replicas)),
            broker_count=brokers * replicas,
            has_controllers=replicas > 1,
            has_grpc=self._has_grpc,
            has_console=self._has_console,
        )
        host = self._host()
        for port in ports.published:
            # Its administration is open: where Docker runs on this machine, others do not reach it.
            self.ports[str(port)] = ("127.0.0.1", port) if host == "127.0.0.1" else port
        settings = OPEN | self._settings
        self.with_command(ports.up_command(brokers, replicas, advertise=host, settings=settings))

    def _wait(self) -> None:
        """Wait until `up` says that the cluster is ready, and its ports are reachable from here."""
        deadline = time.monotonic() + self._startup_timeout_s
        while READY not in self._log():
            self._require_running(deadline, "it did not say that it is ready")
        while not self._is_reachable(self._ports.nameserver):
            self._require_running(deadline, f"{self.nameserver_address} is not reachable")
        if self._has_console:
            self._start_console()
            while not self._serves_console():
                self._require_running(deadline, f"{self.console_url} does not answer")

    def _require_running(self, deadline: float, missing: str) -> None:
        """Pause. Raises ContainerStartException when the container has ended, or the time has expired."""
        container = self.get_wrapped_container()
        container.reload()
        if container.status not in ("created", "running"):
            raise ContainerStartException(f"the container has ended ({container.status}): {self._log_end()}")
        if time.monotonic() > deadline:
            raise ContainerStartException(
                f"not ready within {self._startup_timeout_s:.0f} s, {missing}: {self._log_end()}"
            )
        time.sleep(POLL_S)

    def _start_console(self) -> None:
        port = self._ports.console
        words = f"aerobee console --host 0.0.0.0 --port {port} --users /tmp/console-users.json --host-name {self._host()}"
        environment = {
            "CONSOLE_USER": USER,
            "CONSOLE_PASSWORD": self.console_password,
            "CONSOLE_COMMAND": f"{words} --nameserver 127.0.0.1:{self._ports.nameserver}",
        }
        self.get_wrapped_container().exec_run(
            ["python3", "-c", _START_CONSOLE], environment=environment, detach=True
        )

    def _serves_console(self) -> bool:
        connection = http.client.HTTPConnection(self._host(), self._ports.console, timeout=5)
        with contextlib.closing(connection):
            try:
                connection.request("GET", "/")
                return connection.getresponse().status < 500
            except (OSError, http.client.HTTPException):
                return False

    def _is_reachable(self, port: int) -> bool:
        try:
            with socket.create_connection((self._host(), port), timeout=5):
                return True
        except OSError:
            return False

    def _log(self) -> str:
        return "".join(part.decode(errors="replace") for part in self.get_logs())

    def _log_end(self) -> str:
        return self._log()[-LOG_CHARS:].strip() or "its log is empty"

    def _remove(self) -> None:
        """Remove the container of a start that failed, if there is one."""
        with contextlib.suppress(NotFound):
            self.get_docker_client().client.containers.get(self._own_name).remove(force=True, v=True)
        self._container = None


def is_port_in_use(error: APIError) -> bool:
    """Whether Docker refused a start because a port to publish is in use."""
    text = str(error.explanation or error).lower()
    return "port is already allocated" in text or "address already in use" in text


def _free_first(count: int) -> int:
    """The first of `count` ports, one behind the other, that are free on this machine now."""
    for _ in range(200):
        first = random.randrange(PORTS_FROM, PORTS_TO - count)
        with contextlib.ExitStack() as held:
            try:
                for port in range(first, first + count):
                    held.enter_context(socket.socket()).bind(("0.0.0.0", port))
            except OSError:
                continue
            return first
    raise UsageError(f"no {count} free ports in a row between {PORTS_FROM} and {PORTS_TO}")
