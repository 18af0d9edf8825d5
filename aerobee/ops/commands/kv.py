"""`aerobee kv`: the NameServers' table of namespaces, keys and values: list, get, set, delete.

Twins of mqadmin's updateKvConfig and deleteKvConfig. ORDER_TOPIC_CONFIG, with a topic as key and `broker-a:4;broker-b:4` as value,
is what updateOrderConf writes: the queues that an ordered topic has for its producers.
"""

from __future__ import annotations

from typing import Annotated

import typer

from aerobee.errors import QueryNotFound, UsageError
from aerobee.host_port import NAMESERVER_DEFAULT
from aerobee.ops.options.clients import open_admin
from aerobee.ops.options.options import AsJson, NameServers, Yes, ask
from aerobee.ops.terminal.failure import NotFound
from aerobee.ops.terminal.output import Output
from aerobee.ops.terminal.run import Stop, run

app = typer.Typer(
    name="kv", help="Keys and values that the NameServers keep: list, get, set, delete.", no_args_is_help=True
)
Namespace = Annotated[str, typer.Argument(metavar="NAMESPACE", help="For example ORDER_TOPIC_CONFIG.")]
Key = Annotated[str, typer.Argument(metavar="KEY", help="For example a topic's name.")]


@app.command("list")
def list_values(
    namespace: Namespace, nameserver: NameServers = NAMESERVER_DEFAULT, as_json: AsJson = False
) -> None:
    """List the keys and values of a namespace."""
    out = Output(as_json)

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            try:
                found = await admin.kv_list(namespace)
            except QueryNotFound:
                found = {}
        rows = [{"key": key, "value": value} for key, value in sorted(found.items())]
        out.table(rows, {"key": "key", "value": "value"}, empty=f"nothing is in namespace {namespace}")

    run(command)


@app.command("get")
def get_value(
    namespace: Namespace, key: Key, nameserver: NameServers = NAMESERVER_DEFAULT, as_json: AsJson = False
) -> None:
    """Show one value."""
    out = Output(as_json)

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            try:
                value = await admin.kv_get(namespace, key)
            except QueryNotFound:
                raise NotFound(
                    f"namespace {namespace} has no key {key}; `aerobee kv list {namespace}` shows those it has"
                ) from None
        out.document({"namespace": namespace, "key": key, "value": value}, value)

    run(command)


@app.command("set")
def set_value(
    namespace: Namespace,
    key: Key,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="The new value.")],
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Set a value at every NameServer."""
    out = Output(as_json)
    if not (namespace and key and (namespace + key).isprintable()):
        raise UsageError("namespace and key have at least one character, and none that cannot be printed")

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            await admin.kv_put(namespace, key, value)
            at = list(admin.nameserver_addresses)
        document = {"namespace": namespace, "key": key, "value": value, "at": at}
        out.document(document, f"{namespace} {key} is {value} at {', '.join(at)}")

    run(command)


@app.command("delete")
def delete_value(
    namespace: Namespace,
    key: Key,
    yes: Yes = False,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Delete a key at every NameServer. One that is not there is no fault."""
    out = Output(as_json)
    ask(f"Delete {key} of namespace {namespace}?", yes)

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            await admin.kv_delete(namespace, key)
            at = list(admin.nameserver_addresses)
        out.document(
            {"namespace": namespace, "key": key, "deleted_at": at},
            f"{namespace} {key} is deleted at {', '.join(at)}",
        )

    run(command)
