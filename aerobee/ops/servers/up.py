"""`aerobee up`: a NameServer and brokers on this machine with one command.

A single broker runs in this process together with the NameServer. A broker uses one core, so with several brokers each runs
in a separate process, and so does the NameServer: a process that dies is restarted while the others continue
(server_process.py). The processes drain when their standard input closes, so that none outlives this process.
Ports: the NameServer's, then the brokers' in steps of 10, because RocketMQ also uses adjacent ports (VIP at -2, HA at +1).

With --replicas each broker name has this number of brokers, and three controllers elect the master of each group. Every
server is a separate process and can be killed while the others continue.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from aerobee.access.opening import who_may_administer
from aerobee.broker.assembly.broker import Broker
from aerobee.broker.assembly.ports import (
    BROKER_PORT_STEP,
    CONTROLLERS_OF_A_QUORUM,
    HA_OFFSET,
    VIP_OFFSET,
)
from aerobee.broker.fastpath.choice import BackendChoice, choose_backend, wanted_backend
from aerobee.client.session.registered import RegisteredBrokers
from aerobee.config import Setting, environment_settings
from aerobee.errors import AerobeeError, NoPermission, UsageError
from aerobee.host_port import PORT_MAX, WILDCARDS, bare_host, is_ip, is_loopback, join_address, split_address
from aerobee.nameserver import NameServer
from aerobee.ops.options.options import AsJson
from aerobee.ops.servers.broker import broker_loop, start_broker
from aerobee.ops.servers.listening import port_failure, require_directory, require_free_port
from aerobee.ops.servers.nameserver import start_nameserver
from aerobee.ops.servers.server_process import ServerProcess
from aerobee.ops.servers.serving import Assignments, LogLevel, set_log_level
from aerobee.ops.servers.up_access import own_keys, refused, require_inner_keys, what_commands_need
from aerobee.ops.servers.up_console import UpConsole, open_console
from aerobee.ops.servers.up_grpc import grpc_ports
from aerobee.ops.servers.up_next_steps import exports
from aerobee.ops.settings.settings import (
    BROKER_KINDS,
    BrokerSettings,
    NameServerSettings,
    broker_settings,
    nameserver_settings,
)
from aerobee.ops.terminal.ack_level import ack_sentence
from aerobee.ops.terminal.failure import ExitCode, UnhealthyError
from aerobee.ops.terminal.output import Output
from aerobee.ops.terminal.run import Stop, run
from aerobee.remoting.protocol import MASTER_ID
from aerobee.words import plural

BROKERS_MAX = 64
HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")
# The option that sets each key which `up` decides for its brokers.
UP_SAYS = {
    "listenPort": "--port",
    "bindAddress": "--host",
    "brokerIP1": "--advertise",
    "namesrvAddr": "--nameserver-port",
    "storePathRootDir": "--data",
    "enableControllerMode": "--replicas",
    "controllerAddr": "--controller-port",
    "grpcServerPort": "--grpc-port",
}
HEALTHY_WITHIN_S = 180.0  # includes the recovery of a store after a crash, on a busy machine
POLL_S = 0.05
# Keys of --set that also apply to the NameServer: certificates, and adminOpen, which controllers get as well. tls.server.mode
# applies to brokers only: they register without TLS.
ADMIN_OPEN = "adminOpen"
NAMESERVER_TOO = ("tls.server.keyP", "tls.server.certPath", ADMIN_OPEN)
NOTE_AFTER_S = 3.0
NOTE_AGAIN_S = 15.0
# A temporary cluster needs no gigabyte files; a persistent one keeps RocketMQ's sizes, so that either product opens it.
EPHEMERAL = {
    "mappedFileSizeCommitLog": "67108864",
    "mappedFileSizeConsumeQueue": "600000",
    "maxHashSlotNum": "50000",
    "maxIndexNum": "200000",
}
# RocketMQ disables SQL92 filters by default; a cluster for trying things out should have them.
WANTED = {"enablePropertyFilter": "true"}
# Acknowledged messages must survive a failover.
REPLICATED = {"allAckInSyncStateSet": "true"}
REPLICAS_MAX = 9


@dataclass(frozen=True, slots=True)
class Plan:
    """The servers to start: checked settings, nothing opened yet."""

    nameserver: NameServerSettings
    nameserver_address: str
    brokers: tuple[BrokerSettings, ...]
    nameserver_arguments: tuple[str, ...]  # of each server that is a separate process
    broker_arguments: tuple[tuple[str, ...], ...]
    data: Path
    controllers: tuple[Mapping[str, str], ...] = ()  # key -> value of each controller, with --replicas
    grpc: tuple[str, ...] | str = ""  # address of each broker's gRPC port, or why there is none

    @property
    def controller_addresses(self) -> tuple[str, ...]:
        """Address of each controller; empty without --replicas."""
        return tuple(self.brokers[0].broker.controller_addr.split(";")) if self.controllers else ()

    @property
    def titles(self) -> tuple[str, ...]:
        """Title of each broker in messages: its name, with replicas also its number."""
        names = [settings.broker.broker_name for settings in self.brokers]
        if not self.controllers:
            return tuple(names)
        seen: dict[str, int] = {}
        titles = []
        for name in names:
            seen[name] = seen.get(name, 0) + 1
            titles.append(f"{name} {seen[name]}")
        return tuple(titles)


def register(app: typer.Typer) -> None:
    app.command("up")(up)


BrokerCount = Annotated[
    int,
    typer.Option(
        "--brokers",
        min=1,
        max=BROKERS_MAX,
        help="Number of brokers; each uses one core. Several brokers run as processes and are restarted when they die.",
    ),
]
ReplicaCount = Annotated[
    int,
    typer.Option(
        "--replicas",
        min=1,
        max=REPLICAS_MAX,
        help="Number of brokers per broker name, one of them the master.",
    ),
]
ControllerPort = Annotated[
    int,
    typer.Option(
        "--controller-port", min=1, max=65_000, help="Port of the first controller, with --replicas."
    ),
]
ConsolePort = Annotated[
    int | None,
    typer.Option(
        "--console",
        metavar="PORT",
        min=1,
        max=65_535,
        help="Port of the console at 127.0.0.1 (default: 8080, or the next free port).",
    ),
]

GrpcPort = Annotated[
    int | None,
    typer.Option(
        "--grpc-port",
        min=1,
        max=65_535,
        help="gRPC port of the first broker; each further broker adds 1 (default: free ports from 8081 on).",
    ),
]
NoGrpc = Annotated[bool, typer.Option("--no-grpc", envvar="AEROBEE_NO_GRPC", help="Do not open gRPC ports.")]


def ports_of_up(port: int, broker_count: int, nameserver_port: int, controller_port: int) -> frozenset[int]:
    """The ports that its servers take besides those of gRPC."""
    firsts = range(port, port + broker_count * BROKER_PORT_STEP, BROKER_PORT_STEP)
    of_brokers = {first + offset for first in firsts for offset in (VIP_OFFSET, 0, HA_OFFSET)}
    return frozenset(
        {nameserver_port, *range(controller_port, controller_port + CONTROLLERS_OF_A_QUORUM), *of_brokers}
    )


def up(
    brokers: BrokerCount = 1,
    replicas: ReplicaCount = 1,
    controller_port: ControllerPort = 9_878,
    port: Annotated[
        int,
        typer.Option(
            "--port", min=1, max=65_000, help="Port of the first broker; each further broker adds 10."
        ),
    ] = 10_911,
    nameserver_port: Annotated[
        int, typer.Option("--nameserver-port", min=1, max=65_535, help="Port of the NameServer.")
    ] = 9_876,
    host: Annotated[
        str, typer.Option("--host", help="Address to bind to; 0.0.0.0 accepts connections of other machines.")
    ] = ("127.0.0.1"),
    advertise: Annotated[
        str | None, typer.Option("--advertise", help="Address advertised to clients (default: --host).")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="DIRECTORY",
            envvar="AEROBEE_DATA",
            help="Directory of the messages (default ~/.local/share/aerobee).",
        ),
    ] = None,
    ephemeral: Annotated[
        bool, typer.Option("--ephemeral", help="Use a temporary directory and delete it at the end.")
    ] = (False),
    profile: Annotated[
        str,
        typer.Option(
            "--profile",
            help="development, or production: no automatic creation of topics and consumer groups.",
        ),
    ] = "development",
    console: ConsolePort = None,
    no_console: Annotated[bool, typer.Option("--no-console", help="Do not serve the console.")] = False,
    grpc_port: GrpcPort = None,
    no_grpc: NoGrpc = False,
    assignments: Assignments = None,
    log_level: LogLevel = "warning",
    as_json: AsJson = False,
) -> None:
    """Start a NameServer and brokers on this machine, and run them until Ctrl-C."""
    out = Output(as_json)
    _exclude(no_console, console is not None, "--no-console", "--console")
    _exclude(no_grpc, grpc_port is not None, "--no-grpc", "--grpc-port")
    _exclude(ephemeral, data is not None, "--ephemeral", "--data")
    set_log_level(log_level)
    root = Path(tempfile.mkdtemp(prefix="aerobee-")) if ephemeral else (data or default_data()).absolute()
    try:
        taken = ports_of_up(port, brokers * replicas, nameserver_port, controller_port)
        grpc = "" if no_grpc else grpc_ports(grpc_port, host=host, count=brokers * replicas, taken=taken)
        plan = make_plan(
            grpc=grpc,
            broker_count=brokers,
            replica_count=replicas,
            controller_port=controller_port,
            port=port,
            nameserver_port=nameserver_port,
            host=host,
            advertise=advertise,
            data=root,
            ephemeral=ephemeral,
            profile=profile,
            assignments=assignments or (),
            note=out.note,
        )
        require_ports(plan)
        require_directory(root, "--data")
        page = "" if no_console else open_console(console)
        run(lambda stop: _serve(plan, stop, out, log_level, ephemeral, page), make_loop=broker_loop())
    finally:
        if ephemeral:
            shutil.rmtree(root, ignore_errors=True)
    out.line({"event": "stopped"}, "stopped cleanly")


def _exclude(has_first: bool, has_second: bool, first: str, second: str) -> None:
    """Raise UsageError for two options that contradict each other."""
    if has_first and has_second:
        raise UsageError(f"{first} and {second} are mutually exclusive")


def default_data() -> Path:
    """$XDG_DATA_HOME/aerobee, or ~/.local/share/aerobee."""
    return Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share").expanduser() / "aerobee"


def make_plan(
    *,
    broker_count: int,
    port: int,
    nameserver_port: int,
    host: str,
    advertise: str | None,
    data: Path,
    replica_count: int = 1,
    controller_port: int = 9_878,
    grpc: tuple[int, ...] | str = "",
    ephemeral: bool = False,
    profile: str = "development",
    assignments: Sequence[str] = (),
    environ: Mapping[str, str] = os.environ,
    note: Callable[[str], None] = lambda _: None,
) -> Plan:
    """Choose names, ports and directories. `grpc` has a port for each broker, or says why none. Raises UsageError and ConfigError."""
    _check_addresses(broker_count * replica_count, port, nameserver_port, advertise)
    local = WILDCARDS.get(bare_host(host), host)
    nameserver_address = join_address(local, nameserver_port)
    nameserver, nameserver_arguments = _plan_nameserver(nameserver_port, host, data, assignments)
    controllers = (
        controller_flags(local, controller_port, host, data, assignments) if replica_count > 1 else ()
    )
    broker_arguments: list[tuple[str, ...]] = []
    brokers: list[BrokerSettings] = []
    for index in range(broker_count * replica_count):
        number, replica = divmod(index, replica_count)
        name = f"broker-{chr(ord('a') + number)}" if number < 26 else f"broker-{number + 1}"
        own = {
            "brokerName": name,
            "listenPort": str(port + index * BROKER_PORT_STEP),
            "bindAddress": host,
            "namesrvAddr": nameserver_address,
            "storePathRootDir": str(data / (f"{name}-{replica + 1}" if controllers else name)),
        }
        if isinstance(grpc, tuple):
            own["grpcServerPort"] = str(grpc[index])
        if controllers:
            own["enableControllerMode"] = "true"
            own["controllerAddr"] = ";".join(
                join_address(local, controller_port + at) for at in range(len(controllers))
            )
        if advertise is not None or local == host:
            own["brokerIP1"] = advertise or host
        _refuse_what_up_decides(assignments, own)
        # --set and the environment take precedence over these.
        extra = WANTED | (EPHEMERAL if ephemeral else {}) | (REPLICATED if controllers else {})
        set_elsewhere = environment_settings(environ, BROKER_KINDS)
        own.update(
            {
                key: value
                for key, value in extra.items()
                if not _assigns(assignments, key) and key not in set_elsewhere
            }
        )
        own_texts = [f"{key}={value}" for key, value in own.items() if not _assigns(assignments, key)]
        broker_arguments.append(("--profile", profile, *_set_arguments([*own_texts, *assignments])))
        brokers.append(
            broker_settings(
                profile=profile,
                assignments=assignments,
                flags={key: Setting(value, "aerobee up") for key, value in own.items()},
                environ=environ,
                note=note if index == 0 else lambda _: None,
            )
        )
    if len(brokers) > 1:
        require_inner_keys(brokers[0].access, environ)
    return Plan(
        nameserver,
        nameserver_address,
        tuple(brokers),
        nameserver_arguments,
        tuple(broker_arguments),
        data,
        controllers,
        grpc if isinstance(grpc, str) else tuple(join_address(advertise or local, each) for each in grpc),
    )


def _refuse_what_up_decides(assignments: Sequence[str], own: Mapping[str, str]) -> None:
    """Raise UsageError for a key of --set that would have no effect, because `up` sets it for each broker."""
    for key in own:
        if _assigns(assignments, key):
            say = UP_SAYS.get(key)
            raise UsageError(
                f"--set {key}: `aerobee up` sets this key for its brokers"
                + (f"; use {say}" if say else "")
                + "; `aerobee broker` accepts any key"
            )


def controller_flags(
    local: str, port: int, host: str, data: Path, assignments: Sequence[str] = ()
) -> tuple[Mapping[str, str], ...]:
    """Settings of the controllers of one machine."""
    said = [_value_of(text) for text in assignments if _key_of(text) == ADMIN_OPEN]
    shared = {ADMIN_OPEN: said[-1]} if said else {}
    peers = ";".join(
        f"n{number}-{join_address(local, port + number)}" for number in range(CONTROLLERS_OF_A_QUORUM)
    )
    return tuple(
        {
            "controllerDLegerGroup": "aerobee-up",
            "controllerDLegerPeers": peers,
            "controllerDLegerSelfId": f"n{number}",
            "controllerStorePath": str(data / "controllers"),
            "bindAddress": host,
            **shared,
        }
        for number in range(CONTROLLERS_OF_A_QUORUM)
    )


def _plan_nameserver(
    port: int, host: str, data: Path, assignments: Sequence[str]
) -> tuple[NameServerSettings, tuple[str, ...]]:
    """Settings of the NameServer, and the arguments that give a separate process the same settings."""
    flags = {
        "listenPort": Setting(str(port), "--nameserver-port"),
        "bindAddress": Setting(host, "--host"),
        "kvConfigPath": Setting(str(data / "namesrv" / "kvConfig.json"), "--data"),
    }
    own = [text for text in assignments if _key_of(text).startswith(NAMESERVER_TOO)]
    texts = [f"{key}={setting.value}" for key, setting in flags.items()]
    return nameserver_settings(assignments=own, flags=flags, environ={}), _set_arguments([*texts, *own])


def _set_arguments(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(part for text in texts for part in ("--set", text))


def _check_addresses(broker_count: int, port: int, nameserver_port: int, advertise: str | None) -> None:
    ports = [port + index * BROKER_PORT_STEP for index in range(broker_count)]
    if nameserver_port in ports:
        raise UsageError(
            f"port {nameserver_port} is used by the NameServer (--nameserver-port) and "
            f"by a broker (--port, in steps of {BROKER_PORT_STEP}): choose different ports"
        )
    if ports[-1] > PORT_MAX:
        raise UsageError(
            f"--port {port} is too high for {plural(broker_count, 'broker')}: the last port would be {ports[-1]}, "
            f"above {PORT_MAX}"
        )
    if advertise is None:
        return
    if not is_ip(bare_host(advertise)) and not HOST_NAME.fullmatch(advertise):
        raise UsageError(
            f"--advertise {advertise!r}: write an address or a host name without a port (use --port for it)"
        )


def require_ports(plan: Plan) -> None:
    """Raise PortTaken before anything starts when one of the ports is in use."""
    server = plan.nameserver.server
    require_free_port(server.bind_address, server.listen_port, "the NameServer", "--nameserver-port")
    for controller in plan.controllers:
        from aerobee.ha.controller.config import parse_peers

        address = parse_peers(controller["controllerDLegerPeers"])[controller["controllerDLegerSelfId"]]
        _, port = split_address(address)
        require_free_port(controller["bindAddress"], port, "a controller", "--controller-port")
    for settings in plan.brokers:
        config = settings.broker
        require_free_port(config.bind_address, config.listen_port, config.broker_name, "--port")


async def _serve(
    plan: Plan, stop: Stop, out: Output, log_level: str, ephemeral: bool, page: UpConsole | str
) -> None:
    """`page`: the console, or the reason why there is none; "" with --no-console."""
    stop.taken = True
    started = time.monotonic()
    is_one = len(plan.brokers) == 1 and not plan.controllers
    parts: list[NameServer | Broker] = []  # only started parts: one that fails to start closes itself
    nameservers: list[ServerProcess] = []
    controllers: list[ServerProcess] = []
    brokers: list[ServerProcess] = []
    if not is_one:
        nameservers.append(
            ServerProcess("the NameServer", "nameserver", plan.nameserver_arguments, log_level)
        )
        for flags in plan.controllers:
            arguments = _set_arguments([f"{key}={value}" for key, value in flags.items()])
            title = f"controller {flags['controllerDLegerSelfId']}"
            controllers.append(ServerProcess(title, "controller", arguments, log_level))
        for title, arguments in zip(plan.titles, plan.broker_arguments, strict=True):
            brokers.append(ServerProcess(title, "broker", arguments, log_level))
    processes = [*nameservers, *controllers, *brokers]

    def force() -> None:
        for process in processes:
            process.kill()
        if isinstance(page, UpConsole):
            page.kill()
        if ephemeral:
            shutil.rmtree(plan.data, ignore_errors=True)
            out.note("terminated", style="")
        else:
            out.note("terminated; the stores recover at their next start", style="")
        os._exit(int(ExitCode.INTERRUPTED))

    stop.on_force = force
    try:
        nameserver, addresses = await (
            _start_here(plan, parts) if is_one else _start_processes(nameservers[0], controllers, brokers)
        )
        broker = next((part for part in parts if isinstance(part, Broker)), None)
        await _wait_until_healthy(nameserver, plan, stop, out, broker)
        if not stop:
            seconds = time.monotonic() - started
            backend = choose_backend(wanted_backend(os.environ))
            _say_ready(out, plan, nameserver, addresses, ephemeral, backend, seconds, page)
            pages = (page.serve(nameserver, log_level, out),) if isinstance(page, UpConsole) else ()
            await _stay(stop, *(process.keep_up(out) for process in processes), *pages)
            out.note("draining; press Ctrl-C again to terminate immediately")
    finally:
        if isinstance(page, UpConsole):
            await page.close()
        # Brokers first: they unregister at the controllers and the NameServer.
        for group in (brokers, controllers, nameservers):
            for process in group:
                process.ask_to_end()
            for process in group:
                await process.ended()
        for part in reversed(parts):
            await part.stop()


async def _start_here(plan: Plan, parts: list[NameServer | Broker]) -> tuple[str, dict[str, str]]:
    """Start both servers in this process and add each started one to `parts`. Returns the addresses."""
    nameserver = start_nameserver(plan.nameserver)
    settings = plan.brokers[0]
    broker = start_broker(settings)
    await _start(nameserver, plan.nameserver.server.listen_port, "the NameServer", "--nameserver-port")
    parts.append(nameserver)
    await _start(broker, settings.broker.listen_port, settings.broker.broker_name, "--port")
    parts.append(broker)
    return nameserver.address, {settings.broker.broker_name: broker.address}


async def _start_processes(
    nameserver: ServerProcess, controllers: Sequence[ServerProcess], brokers: Sequence[ServerProcess]
) -> tuple[str, dict[str, str]]:
    """Start the NameServer, then controllers, then brokers. Returns the addresses."""
    await nameserver.start()
    await asyncio.gather(*(process.start() for process in controllers))
    await asyncio.gather(*(process.start() for process in brokers))
    return nameserver.address, {process.name: process.address for process in (*controllers, *brokers)}


async def _start(server: NameServer | Broker, port: int, what: str, change: str) -> None:
    try:
        await server.start()
    except OSError as error:
        raise port_failure(error, "this machine", port, what, change) from error


async def _wait_until_healthy(
    nameserver: str, plan: Plan, stop: Stop, out: Output, broker: Broker | None
) -> None:
    """Healthy: each broker is registered, and the route of the topic named like it is readable."""
    names = sorted({settings.broker.broker_name for settings in plan.brokers})
    deadline = time.monotonic() + HEALTHY_WITHIN_S
    note_at = time.monotonic() + NOTE_AFTER_S
    missing = "no broker is registered"
    access = plan.brokers[0].access
    async with RegisteredBrokers(nameserver, own_keys(access, os.environ)) as registered:
        while not stop:
            try:
                ids = await registered.ids()
                count = sum(map(len, ids.values()))
                absent = [name for name in names if MASTER_ID not in ids.get(name, ())]
                if not absent and count < len(plan.brokers):
                    absent = [plural(len(plan.brokers) - count, "slave")]
                if not absent:
                    for name in names:
                        await registered.route(name)
                    return
                missing = f"not registered yet: {', '.join(absent)}"
            except NoPermission as error:  # permanent: a retry fails in the same way
                raise UnhealthyError(refused(access, error.remark)) from error
            except AerobeeError as error:
                missing = str(error)
            if broker is not None and broker.registration.failures:
                missing += "; " + "; ".join(
                    f"{address}: {why}" for address, why in broker.registration.failures.items()
                )
            if time.monotonic() > note_at:
                note_at += NOTE_AGAIN_S
                out.note(f"waiting: {missing}")
            if time.monotonic() > deadline:
                raise UnhealthyError(
                    f"the cluster did not become healthy within {HEALTHY_WITHIN_S:.0f} s: {missing}"
                )
            await asyncio.sleep(POLL_S)


async def _stay(stop: Stop, *keepers: Coroutine[object, object, None]) -> None:
    """Run until the signal. A process that dies is restarted while the others continue."""
    await stop.or_done(asyncio.gather(stop.wait(), *keepers))


def _say_ready(
    out: Output,
    plan: Plan,
    nameserver: str,
    addresses: Mapping[str, str],
    ephemeral: bool,
    backend: BackendChoice,
    seconds: float,
    page: UpConsole | str,
) -> None:
    store = plan.brokers[0].store
    ack = ack_sentence(store.flush_disk_type.value, store.broker_role.value)
    if plan.controllers and store.all_ack_in_sync_state_set:
        ack += "; in a broker group, after every in-sync broker has stored the message"
    keys = what_commands_need(plan.brokers[0].access, os.environ)
    controllers = plan.controller_addresses
    if out.as_json:
        if keys:
            out.note(f"access control is on, {keys}")
        out.line(
            {
                "event": "ready",
                "nameserver": nameserver,
                "brokers": {name: each for name, each in addresses.items() if name in plan.titles},
                "controllers": list(controllers),
                "data": None if ephemeral else str(plan.data),
                "ack": ack,
                "fast_path": backend.name,
                "seconds": round(seconds, 3),
                "console": page.url if isinstance(page, UpConsole) else None,
                "grpc": [] if isinstance(plan.grpc, str) else list(plan.grpc),
            },
            "",
        )
        return
    out.say(f"Aerobee is up after {seconds:.2f} s.", style="bold green")
    width = max(len(name) for name in ("NameServer", *addresses))
    out.say(f"  {'NameServer':<{width}}  {nameserver}")
    for name, address in addresses.items():
        out.say(f"  {name:<{width}}  {address}")
    if plan.grpc:
        endpoints = plan.grpc if isinstance(plan.grpc, str) else ", ".join(plan.grpc)
        out.say(f"  {'gRPC':<{width}}  {endpoints}")
    out.say(f"  {'data':<{width}}  {'temporary, deleted at the end' if ephemeral else plan.data}")
    out.say(f"  {'ack':<{width}}  {ack}")
    out.say(f"  {'fast path':<{width}}  {backend.name} ({backend.why})")
    if administrators := _administrators(plan.brokers[0]):
        out.say(f"  {'admin':<{width}}  {administrators}")
    if isinstance(page, UpConsole):
        out.say(f"  {'console':<{width}}  {page.url}" + (f" ({page.notice})" if page.notice else ""))
    elif page:
        out.say(f"  {'console':<{width}}  {page}")
    out.say("")
    out.say("In another terminal:", style="bold")
    first = plan.brokers[0]
    for line in exports(
        nameserver=nameserver,
        controllers=controllers,
        brokers=list(addresses.values()),
        tls=first.tls,
        access=first.access,
        environ=os.environ,
    ):
        out.say(f"  {line}")
    command = _command()
    out.say(f'  {command} send hello "my first message"')
    out.say(f"  {command} consume hello --from first")
    if controllers:
        out.say(f"  {command} ha status")
    out.say("")
    out.say("Ctrl-C stops it.")


def _administrators(settings: BrokerSettings) -> str:
    """Users who may administer a broker that other machines can reach; "" if they cannot."""
    hosts = (each.host for each in settings.broker.bound_listeners)
    is_reached = not all(map(is_loopback, hosts))
    return who_may_administer(settings.access) if is_reached else ""


def _command() -> str:
    """The command line of `aerobee` for the user: its name if the shell finds it, else its path."""
    if shutil.which("aerobee") is not None:
        return "aerobee"
    path = Path(sys.executable).with_name("aerobee")
    if not path.exists():
        return f"{sys.executable} -m aerobee.ops"
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _assigns(assignments: Sequence[str], key: str) -> bool:
    return any(_key_of(text) == key for text in assignments)


def _key_of(assignment: str) -> str:
    return assignment.partition("=")[0].strip()


def _value_of(assignment: str) -> str:
    return assignment.partition("=")[2].strip()
