"""`aerobee mcp`: serve an operator's assistant over the Model Context Protocol: read the cluster and, if allowed, change it."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from aerobee.errors import ConfigError
from aerobee.host_port import NAMESERVER_DEFAULT
from aerobee.ops.options.options import AsJson, NameServers
from aerobee.ops.servers.serving import LogLevel, force_on_second_signal, set_log_level, start_and_wait
from aerobee.ops.terminal.failure import ExitCode
from aerobee.ops.terminal.output import Output
from aerobee.ops.terminal.run import Stop, exit_on_interrupt, run

PORT = 8_085
TOKEN_VARIABLE = "AEROBEE_MCP_TOKEN"
TOKEN_BYTES_MAX = 4_096


def register(app: typer.Typer) -> None:
    app.command("mcp")(mcp)


def mcp(
    allow_actions: Annotated[
        bool,
        typer.Option(
            "--allow-actions", help="Offer tools that change the cluster; each needs a dry run first."
        ),
    ] = False,
    audit: Annotated[
        Path | None,
        typer.Option("--audit", metavar="FILE", help="Append each change to this file, as a line of JSON."),
    ] = None,
    http: Annotated[
        bool, typer.Option("--http", help="Serve streamable HTTP instead of standard input and output.")
    ] = False,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen at; others than 127.0.0.1 need a token.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65_535, help="Port to listen at; 0: a free port.")
    ] = PORT,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file", metavar="FILE", help=f"File with the token of HTTP clients (or {TOKEN_VARIABLE})."
        ),
    ] = None,
    log_level: LogLevel = "warning",
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Serve an operator's assistant over the Model Context Protocol (MCP), read-only by default."""
    set_log_level(log_level)
    server = make_mcp(
        {"nameserver": nameserver, "allow_actions": allow_actions, "audit_file": audit},
    )
    if not http:
        exit_on_interrupt()  # the client ends the server by closing its input; a thread waits for that input
        run(lambda stop: server.run_stdio_async())
        return
    module = import_module("aerobee.contrib.mcp.http")
    listener = module.HttpServer(server, module.HttpConfig(host=host, port=port, token=_token(token_file)))
    out = Output(as_json)

    async def command(stop: Stop) -> int:
        force_on_second_signal(stop, out)
        await start_and_wait(listener, stop, out, "MCP server", port)
        return ExitCode.DONE

    run(command)


def make_mcp(settings: dict[str, Any]) -> Any:
    """Create the SDK's server. Raises ConfigError when the SDK is not installed."""
    try:
        module = import_module("aerobee.contrib.mcp.server")
    except ImportError as missing:
        raise ConfigError(
            "the MCP server needs a package that is not installed: pip install 'aerobee[mcp]'"
        ) from missing
    return module.make_server(module.McpConfig(**settings))


def _token(path: Path | None) -> str:
    """The token of the file or the environment, "" for none. Raises ConfigError."""
    if path is None:
        return os.environ.get(TOKEN_VARIABLE, "").strip()
    try:
        with path.open("rb") as file:
            text = file.read(TOKEN_BYTES_MAX).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the token cannot be read from {path}: {error}") from error
    if not text:
        raise ConfigError(f"{path} has no token")
    return text
