"""Options that every command takes, wherever they stand in the line, and the cluster that they choose.

`--debug` belongs to all commands, `--watch` to those that show something (watching.py); `--context` and `--tls…` to all that talk to a cluster, beside their `--nameserver`.
They are added when a command is loaded, so that no command names them, and none can forget them. What was said is kept
here for the one command line that a process runs; clients.py makes its clients from it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.main

from aerobee.ops.terminal.times import above_zero
from aerobee.ops.terminal.watching import WATCHED

if TYPE_CHECKING:
    from aerobee.client.base.config import ClientConfig
    from aerobee.client.session.contexts import Cluster

PANEL = "Connection"
_said: dict[str, Any] = {}
_cluster: list[Cluster] = []


def forget() -> None:
    """A new command line begins."""
    _said.clear()
    _cluster.clear()


def client_config() -> ClientConfig:
    """How this command line wants to connect."""
    from aerobee.client.base.config import ClientConfig

    return _cluster[-1].client if _cluster else ClientConfig()


def chosen_context() -> str:
    """The name of the context that this command line uses; "" for none."""
    return _cluster[-1].context if _cluster else ""


def watch_s() -> float | None:
    """The pause between two looks that --watch asks for; None without it."""
    found = _said.get("watch")
    return None if found is None else float(found)


def is_debug() -> bool:
    return bool(_said.get("debug"))


def _note(name: str) -> Callable[[Any], Any]:
    def note(value: Any) -> Any:
        if value or (value is False and name == "tls"):
            _said[name] = value
        if value and name == "debug":
            logging.getLogger().setLevel(logging.DEBUG)
        return value

    return note


def _template(
    debug: Annotated[
        bool,
        typer.Option(
            "--debug",
            callback=_note("debug"),
            is_eager=True,
            help="Log everything; show where a failure came from.",
        ),
    ] = False,
    watch: Annotated[
        float | None,
        typer.Option(
            "--watch",
            metavar="SPAN",
            parser=above_zero,
            callback=_note("watch"),
            help="Show it again each 2s, 1m, … until Ctrl-C.",
        ),
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(
            "--context",
            metavar="NAME",
            callback=_note("context"),
            is_eager=True,
            rich_help_panel=PANEL,
            help="Connect as this context says (`aerobee context list`, AEROBEE_CONTEXT).",
        ),
    ] = None,
    tls: Annotated[
        bool | None,
        typer.Option(
            "--tls/--no-tls",
            callback=_note("tls"),
            is_eager=True,
            rich_help_panel=PANEL,
            help="Encrypt (AEROBEE_TLS); without --tls-ca-file any certificate is accepted.",
        ),
    ] = None,
    ca_file: Annotated[
        str | None,
        typer.Option(
            "--tls-ca-file",
            metavar="PEM",
            callback=_note("tls_ca_file"),
            is_eager=True,
            rich_help_panel=PANEL,
            help="Accept certificates of these authorities only (AEROBEE_TLS_CA_FILE).",
        ),
    ] = None,
    cert_file: Annotated[
        str | None,
        typer.Option(
            "--tls-cert-file",
            metavar="PEM",
            callback=_note("tls_cert_file"),
            is_eager=True,
            rich_help_panel=PANEL,
            help="Show this certificate to servers that ask (AEROBEE_TLS_CERT_FILE).",
        ),
    ] = None,
    key_file: Annotated[
        str | None,
        typer.Option(
            "--tls-key-file",
            metavar="PEM",
            callback=_note("tls_key_file"),
            is_eager=True,
            rich_help_panel=PANEL,
            help="Its key (AEROBEE_TLS_KEY_FILE; a password in AEROBEE_TLS_KEY_PASSWORD).",
        ),
    ] = None,
) -> None:
    """The options as typer makes them; never called."""


def _made() -> list[Any]:
    holder = typer.Typer(add_completion=False)
    holder.command()(_template)
    parameters: list[Any] = [each for each in typer.main.get_command(holder).params if each.name != "help"]
    for each in parameters:
        each.expose_value = False
    return parameters


KEPT = frozenset({"context add", "context set"})


def add_to(command: Any, path: str) -> None:
    """Give a command, or a group and all its commands, the shared options. `path`: how it is called, without `aerobee`."""
    add_own(command, hidden=hasattr(command, "commands"), path=path)
    for name, below in getattr(command, "commands", {}).items():
        add_to(below, f"{path} {name}")


def add_own(command: Any, *, hidden: bool = False, path: str = "") -> None:
    """Give one command or group the shared options. `hidden`: its help is silent about those of the connection."""
    known = {each.name: each for each in command.params}
    # `context add` and `context set` take such options for what they keep; they speak to nobody.
    has_nameserver = "nameserver" in known and path not in KEPT
    talks = hasattr(command, "commands") or has_nameserver
    for option in _made():
        if option.name == "watch":
            if path in WATCHED:
                command.params.append(option)
        elif option.name == "debug" or (talks and option.name not in known):
            option.hidden = hidden
            command.params.append(option)
    if has_nameserver:
        known["nameserver"].callback = _choose


def _choose(context: Any, parameter: Any, value: str | None) -> str:
    """The nameservers of this command line. All other options of the connection are eager, and so known by now."""
    from aerobee.client.session.contexts import (  # servers take no such option, and need none of it
        Context,
        cluster,
    )

    source = context.get_parameter_source(parameter.name)
    is_given = source is not None and source.name == "COMMANDLINE"
    tls = {
        name: _said[name] for name in ("tls", "tls_ca_file", "tls_cert_file", "tls_key_file") if name in _said
    }
    found = cluster(
        context=_said.get("context"), given=Context(nameserver=value if is_given else None, **tls)
    )
    _cluster.append(found)
    return found.nameservers
