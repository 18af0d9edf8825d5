"""`aerobee kv`: the NameServers' table of namespaces, keys and values: list, get, set, delete.

Equivalents of mqadmin's updateKvConfig, deleteKvConfig and updateOrderConf. updateOrderConf writes the namespace
ORDER_TOPIC_CONFIG: the key is a topic, the value `broker-a:4;broker-b:4` lists the queues of the ordered topic.
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
    name="kv",
    help="Key-value configuration of the NameServers: list, get, set, delete.",
    no_args_is_help=True,
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
        out.table(rows, {"key": "key", "value": "value"}, empty=f"namespace {namespace} is empty")

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
                    f"namespace {namespace} has no key {key}; `aerobee kv list {namespace}` shows its keys"
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
        raise UsageError("namespace and key must not be empty and must consist of printable characters")

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            await admin.kv_put(namespace, key, value)
            at = list(admin.nameserver_addresses)
        document = {"namespace": namespace, "key": key, "value": value, "at": at}
        out.document(document, f"set {namespace} {key} to {value} at {', '.join(at)}")

    run(command)


@app.command("delete")
def delete_value(
    namespace: Namespace,
    key: Key,
    yes: Yes = False,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Delete a key at every NameServer. An unknown key is not an error."""
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
