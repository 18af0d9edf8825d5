"""`aerobee nameserver` and `aerobee broker`: one server in this process, with RocketMQ's flags and file keys.

The first Ctrl-C (or SIGTERM) stops taking requests, answers what is under way, unregisters and flushes. The second
one ends the process at once; the store then recovers at its next start, as after a crash.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Protocol

import typer

from aerobee.broker.broker import Broker
from aerobee.config import Setting, to_properties
from aerobee.nameserver import NameServer
from aerobee.ops.failure import ExitCode
from aerobee.ops.listening import port_failure, require_directory, require_free_port
from aerobee.ops.options import AsJson
from aerobee.ops.output import Output
from aerobee.ops.run import Stop, run
from aerobee.ops.settings import BrokerSettings, NameServerSettings, broker_settings, nameserver_settings

ConfigPath = Annotated[
    str | None, typer.Option("--config", "-c", metavar="FILE", help="Read this file of key=value lines.")
]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set one key of the file; may be repeated."),
]
PrintConfig = Annotated[
    bool, typer.Option("--print-config", "-p", help="Print every key with its value, and end.")
]
LogLevel = Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.")]
WithStdin = Annotated[bool, typer.Option("--stop-with-stdin", hidden=True)]


class Server(Protocol):
    """What can be started and stopped: a NameServer or a Broker."""

    @property
    def address(self) -> str: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


def register(app: typer.Typer) -> None:
    app.command("nameserver")(nameserver)
    app.command("broker")(broker)


def nameserver(
    config: ConfigPath = None,
    port: Annotated[int | None, typer.Option("--port", help="Listen here; 9876 unless set.")] = None,
    host: Annotated[str | None, typer.Option("--host", help="Bind to this address.")] = None,
    assignments: Assignments = None,
    print_config: PrintConfig = False,
    log_level: LogLevel = "info",
    stop_with_stdin: WithStdin = False,
    as_json: AsJson = False,
) -> None:
    """Run a NameServer in this process."""
    out = Output(as_json)
    flags = _flags(("listenPort", port, "--port"), ("bindAddress", host, "--host"))
    settings = nameserver_settings(path=config, assignments=assignments or (), flags=flags, note=out.note)
    if print_config:
        _print_config(out, to_properties(settings.server, settings.tls))
        return
    set_log_level(log_level)

    async def command(stop: Stop) -> None:
        force_on_second_signal(stop, out)
        with stopping_with_stdin(stop, stop_with_stdin):
            await start_and_wait(
                start_nameserver(settings), stop, out, "nameserver", settings.server.listen_port
            )

    run(command)


def broker(
    config: ConfigPath = None,
    nameservers: Annotated[
        str | None, typer.Option("--nameserver", "-n", metavar="HOST:PORT[;…]", help="Register here.")
    ] = None,
    port: Annotated[int | None, typer.Option("--port", help="Listen here; 10911 unless set.")] = None,
    host: Annotated[str | None, typer.Option("--host", help="Bind to this address.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="The broker's name.")] = None,
    data: Annotated[Path | None, typer.Option("--data", help="The store's directory.")] = None,
    profile: Annotated[
        str,
        typer.Option("--profile", help="development, or production: nothing is created by a typing error."),
    ] = "development",
    assignments: Assignments = None,
    print_config: PrintConfig = False,
    log_level: LogLevel = "info",
    stop_with_stdin: WithStdin = False,
    as_json: AsJson = False,
) -> None:
    """Run a broker in this process."""
    out = Output(as_json)
    flags = _flags(
        ("namesrvAddr", nameservers, "--nameserver"),
        ("listenPort", port, "--port"),
        ("bindAddress", host, "--host"),
        ("brokerName", name, "--name"),
        ("storePathRootDir", str(data.absolute()) if data else None, "--data"),
    )
    settings = broker_settings(
        path=config, profile=profile, assignments=assignments or (), flags=flags, note=out.note
    )
    if print_config:
        _print_config(out, to_properties(settings.broker, settings.store, settings.tls))
        return
    if not settings.broker.nameservers:
        out.note(
            "no nameserver is given (-n, namesrvAddr, AEROBEE_NAMESRV_ADDR): clients cannot find this broker",
            style="",
        )
    set_log_level(log_level)

    async def command(stop: Stop) -> None:
        force_on_second_signal(stop, out)
        with stopping_with_stdin(stop, stop_with_stdin):
            await start_and_wait(
                start_broker(settings, config), stop, out, "broker", settings.broker.listen_port
            )

    run(command)


def start_nameserver(settings: NameServerSettings) -> NameServer:
    """Make a NameServer, not started yet. Raises PortTaken."""
    server = settings.server
    if not server.listeners:
        require_free_port(server.bind_address, server.listen_port, "the NameServer", "--port or listenPort")
    return NameServer(server, tls=settings.tls.server_tls())


def start_broker(settings: BrokerSettings, settings_path: str | None = None) -> Broker:
    """Make a broker, not started yet; `settings_path` is its file. Raises PortTaken, LocalRefused."""
    for listener in settings.broker.bound_listeners:
        require_free_port(
            listener.host or "0.0.0.0",
            listener.port,
            f"broker {settings.broker.broker_name}",
            "--port or listenPort",
        )
    require_directory(Path(settings.store.store_path_root_dir), "--data or storePathRootDir")
    return Broker(settings.broker, settings.store, tls=settings.tls.server_tls(), settings_path=settings_path)


async def start_and_wait(server: Server, stop: Stop, out: Output, what: str, port: int) -> None:
    """Start, say so, wait for the signal, drain, say so."""
    stop.taken = True
    try:
        await server.start()
    except OSError as error:
        raise port_failure(error, "this machine", port, f"the {what}", "--port or listenPort") from error
    try:
        out.line(
            {"event": "ready", "part": what, "address": server.address}, f"{what} listens at {server.address}"
        )
        await stop.wait()
        out.note(f"stopping the {what}; Ctrl-C again ends it at once")
    finally:
        await server.stop()
    out.line({"event": "stopped", "part": what}, f"{what} stopped cleanly")


def force_on_second_signal(stop: Stop, out: Output) -> None:
    """The second signal ends the process without draining."""

    def force() -> None:
        out.note("ended at once; the store recovers at its next start", style="")
        os._exit(int(ExitCode.INTERRUPTED))

    stop.on_force = force


@contextlib.contextmanager
def stopping_with_stdin(stop: Stop, wanted: bool) -> Iterator[None]:
    """Stop when standard input ends: the starting process holds the other end, also when it is killed."""
    if not wanted:
        yield
        return
    loop = asyncio.get_running_loop()
    descriptor = sys.stdin.fileno()

    def readable() -> None:
        if not os.read(descriptor, 4096):
            loop.remove_reader(descriptor)
            stop.set()

    loop.add_reader(descriptor, readable)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)


def set_log_level(name: str) -> None:
    """Set the level of Aerobee's own loggers, unless --debug asked for more."""
    level = logging.getLevelNamesMapping().get(name.upper())
    if level is None:
        raise typer.BadParameter(
            f"{name!r} is no level: debug, info, warning or error", param_hint="--log-level"
        )
    if logging.getLogger().level != logging.DEBUG:
        logging.getLogger("aerobee").setLevel(level)


def _flags(*given: tuple[str, object, str]) -> dict[str, Setting]:
    return {key: Setting(str(value), flag) for key, value, flag in given if value is not None}


def _print_config(out: Output, properties: dict[str, str]) -> None:
    if out.as_json:
        out.document(properties)
        return
    for key, value in sorted(properties.items()):
        sys.stdout.write(f"{key}={value}\n")
