"""`aerobee config`: the settings of running brokers, NameServers and controllers: show, set.

Equivalents of mqadmin's getBrokerConfig, updateBrokerConfig and the commands for NameServers and controllers. After a
change the command reads the settings again: a value that a server ignored is a failure with its reason, also at
RocketMQ's servers, which ignore values without an error.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from aerobee.client import Admin
from aerobee.errors import UsageError
from aerobee.host_port import CONTROLLER_DEFAULT, NAMESERVER_DEFAULT
from aerobee.ops.options.clients import masters, open_admin
from aerobee.ops.options.options import AsJson, ClusterName, Controllers, NameServers
from aerobee.ops.settings.setting_meanings import (
    SettingMeaning,
    broker_settings,
    controller_settings,
    nameserver_settings,
)
from aerobee.ops.terminal.failure import UnhealthyError
from aerobee.ops.terminal.output import Output
from aerobee.ops.terminal.run import Stop, run

BROKERS, NAMESERVERS, CONTROLLERS = "brokers", "nameservers", "controllers"
app = typer.Typer(
    name="config",
    help="Settings of running brokers, NameServers and controllers: show, set.",
    no_args_is_help=True,
)
Where = Annotated[
    str,
    typer.Argument(
        metavar="WHERE",
        help="A broker's name or HOST:PORT; brokers: all masters; nameservers: all NameServers; "
        "controllers: those of --controller.",
    ),
]


@dataclass(frozen=True, slots=True)
class Server:
    """One server that has settings."""

    kind: str
    address: str

    @property
    def meanings(self) -> Mapping[str, SettingMeaning]:
        if self.kind == NAMESERVERS:
            return nameserver_settings()
        return controller_settings() if self.kind == CONTROLLERS else broker_settings()

    async def read(self, admin: Admin) -> dict[str, str]:
        """All settings in force."""
        if self.kind == NAMESERVERS:
            return await admin.nameserver_config(self.address)
        if self.kind == CONTROLLERS:
            return await admin.controller_config(self.address)
        return await admin.broker_config(self.address)

    async def change(self, admin: Admin, values: Mapping[str, str]) -> None:
        """Request a change. Raises RemoteError when the server refuses it; read() shows whether the server ignored it."""
        if self.kind == NAMESERVERS:
            await admin.update_nameserver_config(self.address, values)
        elif self.kind == CONTROLLERS:
            await admin.update_controller_config(self.address, values)
        else:
            await admin.update_broker_config(self.address, values)


@app.command("show")
def show(
    where: Where,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[WORD]…", help="Only settings whose name contains one of these words."),
    ] = None,
    changed: Annotated[
        bool, typer.Option("--changed", help="Only settings that differ from their default.")
    ] = False,
    controllers: Controllers = CONTROLLER_DEFAULT,
    cluster: ClusterName = None,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show the effective settings, their meaning, and when a change takes effect."""
    out = Output(as_json)

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            rows = [
                _row(server, key, value)
                for server in await _servers(admin, where, controllers, cluster)
                for key, value in sorted((await server.read(admin)).items())
                if not words or any(word.lower() in key.lower() for word in words)
            ]
        shown = [row for row in rows if not changed or row["value"] != row["default"]]
        columns = {
            "setting": "setting",
            "value": "value",
            "default": "default",
            "counts": "change takes effect",
            "meaning": "meaning",
        }
        if len({row["server"] for row in shown}) > 1:
            columns = {"server": "server", **columns}
        named = f" with {' or '.join(words)} in its name" if words else ""
        out.table(
            shown, columns, empty=f"no setting{named} {'differs from its default' if changed else 'exists'}"
        )

    run(command)


@app.command("set")
def set_values(
    where: Where,
    assignments: Annotated[list[str], typer.Argument(metavar="KEY=VALUE…", help="Settings to change.")],
    controllers: Controllers = CONTROLLER_DEFAULT,
    cluster: ClusterName = None,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Change settings of running servers. Servers with a configuration file also write the change to it."""
    out = Output(as_json)
    values = _assigned(assignments)

    async def command(stop: Stop) -> None:
        rows: list[dict[str, str]] = []
        async with open_admin(nameserver) as admin:
            servers = await _servers(admin, where, controllers, cluster)
            before = {server: await server.read(admin) for server in servers}
            for server in servers:  # before any of them is changed
                _check_known(server, before[server], values)
            for server in servers:
                await server.change(admin, values)
                after = await server.read(admin)
                rows += [
                    {
                        "server": server.address,
                        "setting": key,
                        "before": before[server].get(key, ""),
                        "after": after.get(key, ""),
                    }
                    for key in values
                ]
                _check_taken(server, after, values)
        out.table(
            rows,
            {"server": "server", "setting": "setting", "before": "before", "after": "after"},
            empty="nothing was changed",
        )

    run(command)


def _assigned(assignments: Sequence[str]) -> dict[str, str]:
    """KEY=VALUE texts. Raises UsageError."""
    values: dict[str, str] = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals or not key.strip() or "\n" in text or "\r" in text:
            raise UsageError(f"{text!r} is not of the form KEY=VALUE on one line")
        if key.strip() in values:
            raise UsageError(f"{key.strip()} is given twice")
        values[key.strip()] = value.strip()
    return values


async def _servers(admin: Admin, where: str, controllers: str, cluster: str | None) -> list[Server]:
    """The chosen servers. Raises NotFound, UsageError."""
    if where == NAMESERVERS:
        return [Server(NAMESERVERS, address) for address in admin.nameserver_addresses]
    if where == CONTROLLERS:
        addresses = [part.strip() for part in controllers.split(";") if part.strip()]
        if not addresses:
            raise UsageError("no controller is given: use --controller HOST:PORT[;HOST:PORT]")
        return [Server(CONTROLLERS, address) for address in addresses]
    if where != BROKERS:
        slaves = [info.address for info in await admin.brokers(cluster) if info.address == where]
        if slaves:
            return [Server(BROKERS, where)]
    found = await masters(admin, cluster=cluster, broker=None if where == BROKERS else where)
    return [Server(BROKERS, info.address) for info in found]


def _row(server: Server, key: str, value: str) -> dict[str, str]:
    known = server.meanings.get(key)
    return {
        "server": server.address,
        "setting": key,
        "value": value,
        "default": known.default if known else "",
        "counts": ("immediately" if known.is_live else "at the next start") if known else "",
        "meaning": known.meaning if known else "",
    }


def _check_known(server: Server, before: Mapping[str, str], values: Mapping[str, str]) -> None:
    """Raise UsageError for a setting that the server does not have."""
    for key in values:
        known = server.meanings.get(key)
        if known is None and key not in before:
            alike = difflib.get_close_matches(key, before.keys() | server.meanings.keys(), n=3)
            hint = f"; did you mean {' or '.join(alike)}?" if alike else ""
            raise UsageError(f"{server.address} has no setting {key}{hint}")


def _check_taken(server: Server, after: Mapping[str, str], values: Mapping[str, str]) -> None:
    """Raise UnhealthyError for a value that is not in effect although the server refused nothing."""
    kept = sorted(key for key, value in values.items() if not _is_same(after.get(key, ""), value))
    if kept:
        start_only = [key for key in kept if key in server.meanings and not server.meanings[key].is_live]
        why = (
            "the setting takes effect at the next start only: set it in the configuration file and restart"
            if start_only
            else "the server ignored the change"
        )
        was = ", ".join(f"{key} is {after.get(key, '') or 'not set'}" for key in kept)
        raise UnhealthyError(f"not changed at {server.address}: {was}; {why}")


def _is_same(found: str, wanted: str) -> bool:
    """RocketMQ and Aerobee return a value in their own spelling: True as true."""
    return found == wanted or found.lower() == wanted.lower()
