"""`aerobee console`: a web page that shows and changes a cluster, with the equivalent command of each change."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

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
from aerobee.ops.terminal.failure import ExitCode
from aerobee.ops.terminal.output import Output
from aerobee.ops.terminal.run import Stop, run
from aerobee.system import raise_open_files_max

PORT = 8_080


def register(app: typer.Typer) -> None:
    app.command("console")(console)


UsersFile = Annotated[
    Path | None,
    typer.Option(
        "--users", metavar="FILE", help="JSON file of users and their permissions (docs/console.md)."
    ),
]
AuditFile = Annotated[
    Path | None,
    typer.Option("--audit", metavar="FILE", help="Append each change to this file, as a line of JSON."),
]
UserHeader = Annotated[
    str,
    typer.Option("--user-header", metavar="NAME", help="Header in which a proxy passes the user name."),
]
ClientHeader = Annotated[
    str,
    typer.Option(
        "--client-header",
        metavar="NAME",
        help="Header in which a proxy passes the browser's address, for example X-Forwarded-For.",
    ),
]
PlanFile = Annotated[
    Path | None,
    typer.Option("--plan", metavar="FILE", help="Show this plan of `aerobee spark placement`."),
]
Also = Annotated[
    list[str] | None,
    typer.Option(
        "--also",
        metavar="NAME=HOST:PORT[;…]",
        help="A further cluster by its NameServers, to choose in the browser; may be repeated.",
    ),
]
SchemaFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--schema",
        metavar="TOPIC=FILE",
        help="Decode bodies of this topic by an Avro schema, or by FILE#MESSAGE, a descriptor set of protoc; may be repeated.",
    ),
]
MaskedFields = Annotated[
    list[str] | None,
    typer.Option(
        "--mask",
        metavar="TOPIC=FIELD[,FIELD…]",
        help="Hide these fields of JSON bodies, or * for the whole body; may be repeated.",
    ),
]
PrometheusUrl = Annotated[
    str,
    typer.Option("--prometheus", metavar="URL", help="Prometheus server for charts over a day and a month."),
]


def console(
    host: Annotated[
        str, typer.Option("--host", help="Address to listen at; others than 127.0.0.1 need --users.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65_535, help="Port to listen at; 0: a free port.")
    ] = PORT,
    read_only: Annotated[bool, typer.Option("--read-only", help="Refuse all changes.")] = False,
    users: UsersFile = None,
    cluster_users: Annotated[
        bool,
        typer.Option("--cluster-users", help="Log in users of the cluster's access control with their keys."),
    ] = False,
    audit: AuditFile = None,
    host_name: Annotated[
        list[str] | None,
        typer.Option("--host-name", help="Host name that browsers may use; may be repeated."),
    ] = None,
    user_header: UserHeader = "",
    client_header: ClientHeader = "",
    proxy: Annotated[
        list[str] | None,
        typer.Option(
            "--proxy", metavar="ADDRESS", help="Proxy whose headers are trusted (default 127.0.0.1)."
        ),
    ] = None,
    plan: PlanFile = None,
    schema: SchemaFiles = None,
    also: Also = None,
    mask: MaskedFields = None,
    prometheus: PrometheusUrl = "",
    hash_password: Annotated[
        bool, typer.Option("--hash-password", help="Prompt for a password, print its hash, and exit.")
    ] = False,
    listen_descriptor: Annotated[int, typer.Option("--listen-descriptor", hidden=True)] = -1,
    stop_with_stdin: WithStdin = False,
    log_level: LogLevel = "info",
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Serve the web console until Ctrl-C."""
    out = Output(as_json)
    if hash_password:
        users_module = import_module("aerobee.console.users")
        given = typer.prompt("password", hide_input=True, confirmation_prompt=True)
        out.document({"password": users_module.hash_password(given)}, users_module.hash_password(given))
        return
    set_log_level(log_level)
    raise_open_files_max()  # half of the limit is for connections
    settings: dict[str, Any] = {
        "nameserver": nameserver,
        "host": host,
        "port": port,
        "read_only": read_only,
        "users_file": users,
        "cluster_users": cluster_users,
        "audit_file": audit,
        "host_names": tuple(host_name or ()),
        "user_header": user_header,
        "client_header": client_header,
        "plan_file": plan,
        "schemas": tuple(schema or ()),
        "further_clusters": _named(also),
        "masks": tuple(mask or ()),
        "prometheus_url": prometheus,
        "listen_descriptor": listen_descriptor,
        **({"proxy_addresses": tuple(proxy)} if proxy else {}),
    }

    async def command(stop: Stop) -> int:
        force_on_second_signal(stop, out)
        with stopping_with_stdin(stop, stop_with_stdin):
            await start_and_wait(make_console(settings), stop, out, "console", port)
        return ExitCode.DONE

    run(command)


def _named(also: list[str] | None) -> tuple[tuple[str, str], ...]:
    """Name and NameServers of each --also."""
    return tuple((name, addresses) for name, _, addresses in (each.partition("=") for each in also or ()))


def make_console(settings: dict[str, Any]) -> Any:
    """Create a ConsoleServer, not started. Raises ConfigError, also when aiohttp is not installed."""
    try:
        server, config = import_module("aerobee.console.server"), import_module("aerobee.console.config")
    except ImportError as missing:
        raise ConfigError(
            "the console needs a package that is not installed: pip install 'aerobee[metrics]'"
        ) from missing
    return server.ConsoleServer(config.ConsoleConfig(**settings), client=client_config())
