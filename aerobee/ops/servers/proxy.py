"""`aerobee proxy`: gRPC in front of a cluster, Aerobee's or RocketMQ's."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated

import typer

from aerobee.broker.assembly.grpc_packages import grpc_is_installed
from aerobee.config import to_properties
from aerobee.errors import ConfigError
from aerobee.host_port import NAMESERVER_DEFAULT
from aerobee.ops.options.options import AsJson, NameServers
from aerobee.ops.options.shared_options import client_config
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
from aerobee.ops.settings.settings import proxy_settings
from aerobee.ops.terminal.output import Output
from aerobee.ops.terminal.run import Stop, run
from aerobee.system import raise_open_files_max


def register(app: typer.Typer) -> None:
    app.command("proxy")(proxy)


def proxy(
    context: typer.Context,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    config: ConfigPath = None,
    host: Annotated[
        str | None, typer.Option("--host", help="Address to listen at (default 0.0.0.0).")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option("--port", min=0, max=65_535, help="Port to listen at (default 8081); 0: a free port."),
    ] = None,
    proxied_from: Annotated[
        str | None,
        typer.Option(
            "--proxy-protocol-from",
            metavar="ADDRESSES",
            help="Balancers whose connections may begin with a PROXY protocol header, separated by ;.",
        ),
    ] = None,
    certificate: Annotated[
        str | None,
        typer.Option(
            "--certificate", metavar="FILE", help="PEM file of the certificate (default self-signed)."
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="FILE", help="PEM file of the certificate's private key."),
    ] = None,
    trust_clients: Annotated[
        bool,
        typer.Option(
            "--trust-clients",
            help="Serve clients without a check of their users, with the permissions of the proxy's own user.",
        ),
    ] = False,
    assignments: Assignments = None,
    print_config: PrintConfig = False,
    log_level: LogLevel = "info",
    stop_with_stdin: WithStdin = False,
    as_json: AsJson = False,
) -> None:
    """Serve gRPC clients in front of a cluster, Aerobee's or RocketMQ's, until Ctrl-C."""
    out = Output(as_json)
    source = context.get_parameter_source("nameserver")
    is_given = nameserver != NAMESERVER_DEFAULT or (source is not None and source.name == "COMMANDLINE")
    flags = flags_of(
        ("namesrvAddr", nameserver if is_given else None, "--nameserver"),
        ("bindAddress", host, "--host"),
        ("grpcServerPort", port, "--port"),
        ("proxyProtocolFrom", proxied_from, "--proxy-protocol-from"),
        ("tls.server.certPath", certificate, "--certificate"),
        ("tls.server.keyPath", key, "--key"),
        ("trustClients", "true" if trust_clients else None, "--trust-clients"),
    )
    settings = proxy_settings(path=config, assignments=assignments or (), flags=flags, note=out.note)
    if print_config:
        write_config(out, to_properties(settings.proxy, settings.tls, settings.access))
        return
    if not grpc_is_installed():
        raise ConfigError("the proxy needs the package protobuf: pip install 'aerobee[grpc]'")
    set_log_level(log_level)
    raise_open_files_max()  # half of the limit is for connections
    server = import_module("aerobee.proxy.server")  # loads what few commands need
    tls = settings.tls.server_tls((server.LISTENER,))

    async def command(stop: Stop) -> None:
        force_on_second_signal(stop, out)
        made = server.ProxyServer(
            settings.proxy, client=client_config(), access=settings.access, settings_path=config, tls=tls
        )
        with stopping_with_stdin(stop, stop_with_stdin):
            await start_and_wait(made, stop, out, "proxy", settings.proxy.port)

    run(command)
