"""Shared options, accepted anywhere in the command line, and the cluster that they choose.

All commands take `--debug`. Commands that show something take `--watch` (watching.py). Commands that connect to a
cluster take `--context` and `--tls…` in addition to `--nameserver`. The options are added when a command is loaded, so
that no command declares them and none can miss them. This module keeps the values for the one command line that a
process runs; clients.py creates its clients from them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from copy import copy
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.main

from aerobee.ops.terminal.times import above_zero
from aerobee.ops.terminal.watching import WATCHED

if TYPE_CHECKING:
    from aerobee.client.base.config import ClientConfig
    from aerobee.client.session.contexts import Cluster, Context

PANEL = "Connection"
TLS_NAMES = ("tls", "tls_ca_file", "tls_insecure", "tls_cert_file", "tls_key_file")
PLAIN_TYPES = {
    "text": "TEXT", "str": "TEXT", "integer": "NUMBER", "int": "NUMBER", "float": "NUMBER", "path": "FILE",
    "integer range": "NUMBER", "int range": "NUMBER", "float range": "NUMBER",
}  # fmt: skip
_said: dict[str, Any] = {}
_cluster: list[Cluster] = []


def forget() -> None:
    """A new command line begins."""
    _said.clear()
    _cluster.clear()


def client_config() -> ClientConfig:
    """The client configuration that this command line chooses."""
    from aerobee.client.base.config import ClientConfig

    return _cluster[-1].client if _cluster else ClientConfig()


def chosen_context() -> str:
    """The name of the context that this command line uses; "" for none."""
    return _cluster[-1].context if _cluster else ""


def watch_s() -> float | None:
    """The interval of --watch in seconds; None without --watch."""
    found = _said.get("watch")
    return None if found is None else float(found)


def is_debug() -> bool:
    return bool(_said.get("debug"))


def _note(name: str) -> Callable[[Any], Any]:
    def note(value: Any) -> Any:
        if value or (value is False and name in ("tls", "tls_insecure")):
            _said[name] = value
        if value and name == "debug":
            logging.getLogger().setLevel(logging.DEBUG)
        return value

    return note


def _connection(option: str, help: str) -> Any:
    """A connection option; `_choose` reads its value by the option's first name."""
    name = option.partition("/")[0].removeprefix("--").replace("-", "_")
    metavar = None if "/" in option else "NAME" if name == "context" else "PEM"
    return typer.Option(
        option, metavar=metavar, callback=_note(name), is_eager=True, rich_help_panel=PANEL, help=help
    )


def _template(
    debug: Annotated[
        bool,
        typer.Option(
            "--debug",
            callback=_note("debug"),
            is_eager=True,
            help="Log at level DEBUG and print the traceback of a failure.",
        ),
    ] = False,
    watch: Annotated[
        float | None,
        typer.Option(
            "--watch",
            metavar="SPAN",
            parser=above_zero,
            callback=_note("watch"),
            help="Repeat at this interval (2s, 1m, …) until Ctrl-C.",
        ),
    ] = None,
    context: Annotated[
        str | None,
        _connection(
            "--context", "Use the connection of this context (`aerobee context list`, AEROBEE_CONTEXT)."
        ),
    ] = None,
    tls: Annotated[
        bool | None,
        _connection("--tls/--no-tls", "Connect with TLS (AEROBEE_TLS); verify certificates and host names."),
    ] = None,
    ca_file: Annotated[
        str | None,
        _connection(
            "--tls-ca-file", "Trust these authorities instead of the system's (AEROBEE_TLS_CA_FILE)."
        ),
    ] = None,
    insecure: Annotated[
        bool | None,
        _connection(
            "--tls-insecure/--no-tls-insecure",
            "Connect with TLS and accept any certificate (AEROBEE_TLS_INSECURE).",
        ),
    ] = None,
    cert_file: Annotated[
        str | None,
        _connection(
            "--tls-cert-file",
            "Client certificate, for servers that require one (AEROBEE_TLS_CERT_FILE).",
        ),
    ] = None,
    key_file: Annotated[
        str | None,
        _connection(
            "--tls-key-file",
            "Key of the client certificate (AEROBEE_TLS_KEY_FILE; its password: AEROBEE_TLS_KEY_PASSWORD).",
        ),
    ] = None,
) -> None:
    """Declares the options for typer; never called."""


@cache
def _made() -> tuple[Any, ...]:
    """The options as typer makes them, which takes 3 ms: once for all commands, each of which gets copies."""
    holder = typer.Typer(add_completion=False)
    holder.command()(_template)
    parameters: list[Any] = [each for each in typer.main.get_command(holder).params if each.name != "help"]
    for each in parameters:
        each.expose_value = False
    return tuple(parameters)


KEPT = frozenset({"context add", "context set"})


def add_to(command: Any, path: str) -> None:
    """Add the shared options to a command, or to a group and all its commands. `path`: the command without `aerobee`."""
    for parameter in command.params:
        _use_plain_type(parameter)
    add_own(command, hidden=hasattr(command, "commands"), path=path)
    for name, below in getattr(command, "commands", {}).items():
        add_to(below, f"{path} {name}")


def _use_plain_type(parameter: Any) -> None:
    """Name the type of a value in a user's words in the help: a number with its bounds, text, a file.

    An argument has a name already, such as GROUP or FILE, so only a number's type is added to it.
    """
    name = PLAIN_TYPES.get(parameter.type.name)
    if name is None or getattr(parameter, "is_flag", False):
        return
    if parameter.param_type_name == "argument":
        shown = name if name == "NUMBER" else ""
        parameter.type = copy(parameter.type)  # the types of text and files are shared by all parameters
        parameter.type.get_metavar = lambda param, ctx: shown
    elif parameter.metavar is None:
        parameter.metavar = name


def add_own(command: Any, *, hidden: bool = False, path: str = "") -> None:
    """Add the shared options to one command or group. `hidden`: leave the connection options out of its help."""
    known = {each.name: each for each in command.params}
    # `context add` and `context set` store the values of these options; they do not connect.
    has_nameserver = "nameserver" in known and path not in KEPT
    has_controllers = "controllers" in known and path not in KEPT
    talks = hasattr(command, "commands") or has_nameserver or has_controllers
    for option in map(copy, _made()):
        if option.name == "watch":
            if path in WATCHED:
                command.params.append(option)
        elif option.name == "debug" or (talks and option.name not in known):
            option.hidden = hidden
            command.params.append(option)
    if has_nameserver:
        known["nameserver"].callback = _choose_nameservers
    if has_controllers:
        known["controllers"].callback = _choose_controllers


def _choose_nameservers(context: Any, parameter: Any, value: str | None) -> str:
    """The NameServers of this command line. All other connection options are eager, so their values are known here."""
    from aerobee.client.session.contexts import Context  # imported here: servers do not need it

    return _choose(Context(nameserver=_of_command_line(context, parameter, value))).nameservers


def _choose_controllers(context: Any, parameter: Any, value: str | None) -> str:
    """The controllers of this command line, with the connection options of its context."""
    from aerobee.client.session.contexts import Context

    given = Context(controller=_of_command_line(context, parameter, value))
    if _cluster:  # the NameServers of this command line have chosen the connection
        return given.controller or _cluster[-1].controllers
    return _choose(given).controllers


def _of_command_line(context: Any, parameter: Any, value: str | None) -> str | None:
    """The value if the command line has it; None for one of the environment, which contexts.py reads, or a default."""
    source = context.get_parameter_source(parameter.name)
    return value if source is not None and source.name == "COMMANDLINE" else None


def _choose(given: Context) -> Cluster:
    from aerobee.client.session.contexts import Context, cluster

    tls = Context(**{name: _said[name] for name in TLS_NAMES if name in _said})
    found = cluster(context=_said.get("context"), given=given.over(tls))
    _cluster.append(found)
    return found
