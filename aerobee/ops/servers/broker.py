"""`aerobee broker`: a broker in this process, with RocketMQ's flags and file keys."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from aerobee.broker.assembly.broker import Broker
from aerobee.broker.assembly.ports import VIP_LISTENER, has_vip_listener
from aerobee.broker.fastpath.choice import choose_backend, wanted_backend
from aerobee.broker.state.config import BrokerConfig
from aerobee.config import to_properties
from aerobee.ops.options.options import AsJson
from aerobee.ops.servers.listening import require_directory, require_free_port
from aerobee.ops.servers.serving import (
    Assignments,
    ConfigPath,
    LogLevel,
    PrintConfig,
    WithStdin,
    flags_of,
    force_on_second_signal,
    set_log_level,
    start_and_wait,
    stopping_with_stdin,
    write_config,
)
from aerobee.ops.settings.settings import BrokerSettings, broker_settings
from aerobee.ops.terminal.output import Output
from aerobee.ops.terminal.run import MakeLoop, Stop, run, usual_loop
from aerobee.remoting.native_loop import new_event_loop
from aerobee.system import raise_open_files_max


def register(app: typer.Typer) -> None:
    app.command("broker")(broker)


def broker(
    config: ConfigPath = None,
    nameservers: Annotated[
        str | None,
        typer.Option(
            "--nameserver", "-n", metavar="HOST:PORT[;…]", help="NameServers at which the broker registers."
        ),
    ] = None,
    port: Annotated[int | None, typer.Option("--port", help="Port to listen at (default 10911).")] = None,
    host: Annotated[str | None, typer.Option("--host", help="Address to bind to.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Broker name.")] = None,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIRECTORY", help="Directory of the store.")
    ] = None,
    profile: Annotated[
        str,
        typer.Option(
            "--profile",
            help="development, or production: no automatic creation of topics and consumer groups.",
        ),
    ] = "development",
    assignments: Assignments = None,
    print_config: PrintConfig = False,
    log_level: LogLevel = "info",
    stop_with_stdin: WithStdin = False,
    as_json: AsJson = False,
) -> None:
    """Run a broker in this process."""
    out = Output(as_json)
    flags = flags_of(
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
        write_config(out, to_properties(settings.broker, settings.store, settings.tls, settings.access))
        return
    if not settings.broker.nameservers:
        out.note(
            "no NameServer is given (-n, namesrvAddr, AEROBEE_NAMESRV_ADDR): clients cannot find this broker",
            style="",
        )
    set_log_level(log_level)
    raise_open_files_max()  # before the store reads the limit

    async def command(stop: Stop) -> None:
        force_on_second_signal(stop, out)
        with stopping_with_stdin(stop, stop_with_stdin):
            await start_and_wait(
                start_broker(settings, config), stop, out, "broker", settings.broker.listen_port
            )

    run(command, make_loop=broker_loop())


def broker_loop() -> MakeLoop | None:
    """The event loop of a process with a broker: the one of the native sockets, if the native backend is in use."""
    make_sockets = choose_backend(wanted_backend(os.environ)).make_sockets
    return None if make_sockets is None else lambda: new_event_loop(make_sockets, usual_loop)


def _listener_names(config: BrokerConfig) -> list[str]:
    second = [VIP_LISTENER] if has_vip_listener(config) else []
    return [each.name for each in config.bound_listeners] + second


def start_broker(settings: BrokerSettings, settings_path: str | None = None) -> Broker:
    """Create a broker, not started yet; `settings_path` is its file. Raises PortTaken, LocalRefused."""
    for listener in settings.broker.bound_listeners:
        require_free_port(
            listener.host or "0.0.0.0",
            listener.port,
            f"broker {settings.broker.broker_name}",
            "--port or listenPort",
        )
    require_directory(Path(settings.store.store_path_root_dir), "--data or storePathRootDir")
    return Broker(
        settings.broker,
        settings.store,
        tls=settings.tls.server_tls(_listener_names(settings.broker)),
        settings_path=settings_path,
        access=settings.access,
    )
