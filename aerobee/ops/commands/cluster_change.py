"""`aerobee cluster stop-writes`, `allow-writes`, `clean`, `producers`: equivalents of mqadmin's wipeWritePerm, addWritePerm,
deleteExpiredCommitLog, cleanExpiredCQ, cleanUnusedTopic, producer and producerConnection."""

from __future__ import annotations

from typing import Annotated

import typer

from aerobee.errors import UsageError
from aerobee.host_port import NAMESERVER_DEFAULT
from aerobee.ops.options.clients import masters, open_admin
from aerobee.ops.options.options import AsJson, ClusterName, NameServers
from aerobee.ops.terminal.output import Output
from aerobee.ops.terminal.run import Stop, run
from aerobee.ops.terminal.times import moment_text
from aerobee.words import plural

BrokerName = Annotated[
    str, typer.Argument(metavar="BROKER_NAME", help="Broker name, shared by a master and its replicas.")
]
AtBroker = Annotated[
    str | None, typer.Option("--broker", "-b", help="Only this broker: a name or HOST:PORT.")
]


def stop_writes(
    broker: BrokerName, nameserver: NameServers = NAMESERVER_DEFAULT, as_json: AsJson = False
) -> None:
    """Remove a broker from producers' routes until allow-writes or its next start; consumers continue."""
    _permit(broker, nameserver, Output(as_json), is_allowed=False)


def allow_writes(
    broker: BrokerName, nameserver: NameServers = NAMESERVER_DEFAULT, as_json: AsJson = False
) -> None:
    """Return a broker to producers' routes."""
    _permit(broker, nameserver, Output(as_json), is_allowed=True)


def _permit(broker: str, nameserver: str, out: Output, *, is_allowed: bool) -> None:
    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            (found, *_) = await masters(admin, broker=broker)
            name = found.broker_name
            change = admin.add_write_perm if is_allowed else admin.wipe_write_perm
            count = await change(name)
        verb = "accept writes again" if is_allowed else "accept no writes any more"
        out.document(
            {"broker": name, "is_writable": is_allowed, "topics": count},
            f"{plural(count, 'topic')} of {name} {verb}; producers learn it with their next route refresh",
        )

    run(command)


def clean(
    files: Annotated[
        bool,
        typer.Option("--files", help="Delete commit log and queue files older than fileReservedTime."),
    ] = False,
    queues: Annotated[
        bool, typer.Option("--queues", help="Delete queues of topics that the broker does not know any more.")
    ] = False,
    broker: AtBroker = None,
    cluster: ClusterName = None,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Delete expired files or unused queues now, instead of at the brokers' daily deletion (deleteWhen)."""
    out = Output(as_json)
    if not files and not queues:
        raise UsageError("no target is given: use --files, --queues or both")

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            addresses = [info.address for info in await masters(admin, cluster=cluster, broker=broker)]
            for address in addresses:
                if files:
                    await admin.delete_expired_files(address)
                if queues:
                    await admin.delete_unused_queues(address)
        what = [word for word, is_meant in (("old files", files), ("unused queues", queues)) if is_meant]
        out.document(
            {"brokers": addresses, "files": files, "queues": queues},
            f"{' and '.join(what)} are deleted at {', '.join(addresses)}",
        )

    run(command)


def producers(
    group: Annotated[
        str | None, typer.Option("--group", "-g", help="List producers of this group only.")
    ] = None,
    broker: AtBroker = None,
    cluster: ClusterName = None,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """List the connected producers and the time of each one's last heartbeat."""
    out = Output(as_json)

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            rows = [
                {
                    "group": each.group,
                    "client_id": each.client_id,
                    "address": each.address,
                    "language": each.language,
                    "version": each.version,
                    "protocol": each.protocol,
                    "broker": info.broker_name,
                    "seen": moment_text(each.seen_ms),
                }
                for info in await masters(admin, cluster=cluster, broker=broker)
                for each in await admin.all_producers(info.address)
                if group in (None, each.group)
            ]
        out.table(
            rows,
            {"group": "group", "client_id": "producer", "address": "address", "protocol": "protocol", "language": "language", "broker": "at broker", "seen": "last heartbeat"},
            empty="no producer is connected" if group is None else f"no producer of group {group} is connected",
        )  # fmt: skip

    run(command)
