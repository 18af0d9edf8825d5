"""`aerobee proxy`: gRPC in front of a cluster, Aerobee's or RocketMQ's."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer

from aerobee.broker.assembly.grpc_packages import grpc_is_installed
from aerobee.errors import ConfigError
from aerobee.host_port import NAMESERVER_DEFAULT
from aerobee.ops.options.options import AsJson, NameServers
from aerobee.ops.options.shared_options import client_config
from aerobee.ops.servers.serving import (
    LogLevel,
    WithStdin,
    force_on_second_signal,
    set_log_level,
    start_and_wait,
    stopping_with_stdin,
)
from aerobee.ops.settings.settings import TlsSettings
from aerobee.ops.terminal.output import Output
from aerobee.ops.terminal.run import Stop, run
from aerobee.system import raise_open_files_max

PORT = 8_081  # grpcServerPort of RocketMQ's proxy


def register(app: typer.Typer) -> None:
    app.command("proxy")(proxy)


def proxy(
    nameserver: NameServers = NAMESERVER_DEFAULT,
    host: Annotated[str, typer.Option("--host", help="Address to listen at.")] = "0.0.0.0",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65_535, help="Port to listen at; 0: a free port.")
    ] = PORT,
    proxied_from: Annotated[
        str,
        typer.Option(
            "--proxy-protocol-from",
            metavar="ADDRESSES",
            help="Balancers whose connections may begin with a PROXY protocol header, separated by ;.",
        ),
    ] = "",
    certificate: Annotated[
        str,
        typer.Option(
            "--certificate", metavar="FILE", help="PEM file of the certificate (default self-signed)."
        ),
    ] = "",
    key: Annotated[
        str, typer.Option("--key", metavar="FILE", help="PEM file of the certificate's private key.")
    ] = "",
    trust_clients: Annotated[
        bool,
        typer.Option(
            "--trust-clients",
            help="Serve clients with the permissions of the proxy's own user, wherever they are.",
        ),
    ] = False,
    log_level: LogLevel = "info",
    stop_with_stdin: WithStdin = False,
    as_json: AsJson = False,
) -> None:
    """Serve gRPC clients in front of a cluster, Aerobee's or RocketMQ's, until Ctrl-C."""
    out = Output(as_json)
    if not grpc_is_installed():
        raise ConfigError("the proxy needs the packages h2 and protobuf: pip install 'aerobee[grpc]'")
    set_log_level(log_level)
    raise_open_files_max()  # half of the limit is for connections
    server = import_module("aerobee.proxy.server")  # loads what few commands need
    settings: dict[str, Any] = {
        "nameservers": nameserver,
        "host": host,
        "port": port,
        "trusts_clients": trust_clients,
        "proxied_from": proxied_from,
        "client": client_config(),
    }
    tls = TlsSettings(cert_path=certificate, key_path=key, test_mode=not certificate)

    async def command(stop: Stop) -> None:
        force_on_second_signal(stop, out)
        made = server.ProxyServer(server.ProxyConfig(**settings), tls=tls.server_tls((server.LISTENER,)))
        with stopping_with_stdin(stop, stop_with_stdin):
            await start_and_wait(made, stop, out, "proxy", port)

    run(command)
