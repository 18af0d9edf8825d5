"""`aerobee cluster`: list and describe; cluster_change.py, cluster_copy.py and drain.py add the other commands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from aerobee.client import Admin
from aerobee.client.base.results import BrokerInfo
from aerobee.errors import AerobeeError
from aerobee.host_port import NAMESERVER_DEFAULT
from aerobee.ops.commands.cluster_change import allow_writes, clean, producers, stop_writes
from aerobee.ops.commands.cluster_copy import export_cluster, import_cluster
from aerobee.ops.commands.drain import drain
from aerobee.ops.options.clients import open_admin
from aerobee.ops.options.options import AsJson, ClusterName, NameServers
from aerobee.ops.terminal.ack_level import ack_sentence_of
from aerobee.ops.terminal.failure import explain
from aerobee.ops.terminal.output import Output, Share
from aerobee.ops.terminal.run import Stop, run

app = typer.Typer(
    name="cluster",
    help="Clusters and their brokers: list, describe, drain, stop writes, clean, export, import, producers.",
    no_args_is_help=True,
)
app.command("drain")(drain)
app.command("stop-writes")(stop_writes)
app.command("allow-writes")(allow_writes)
app.command("clean")(clean)
app.command("producers")(producers)
app.command("export")(export_cluster)
app.command("import")(import_cluster)


@app.command("list")
def list_clusters(
    cluster: ClusterName = None, nameserver: NameServers = NAMESERVER_DEFAULT, as_json: AsJson = False
) -> None:
    """List the registered brokers with their rates."""
    out = Output(as_json)

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            rows = [await _row(admin, info) for info in await admin.brokers(cluster)]
        out.table(
            rows,
            {
                "cluster": "cluster",
                "broker": "broker",
                "id": "id",
                "address": "address",
                "version": "version",
                "in_tps": "in/s",
                "out_tps": "out/s",
                "disk": "disk",
                "state": "state",
            },
            empty="no broker is registered; start one with `aerobee broker -n ADDRESS` or `aerobee up`",
        )

    run(command)


@app.command("describe")
def describe_cluster(
    cluster: ClusterName = None, nameserver: NameServers = NAMESERVER_DEFAULT, as_json: AsJson = False
) -> None:
    """Show each broker's state: rates, disk, log, and the durability of its acknowledgements."""
    out = Output(as_json)

    async def command(stop: Stop) -> None:
        documents = []
        async with open_admin(nameserver) as admin:
            for info in await admin.brokers(cluster):
                documents.append(await broker_document(admin, info))
        if as_json:
            out.document(documents)
            return
        if not documents:
            out.say("no broker is registered; start one with `aerobee broker -n ADDRESS` or `aerobee up`")
        for document in documents:
            runtime = document.pop("runtime", {})
            out.facts(document, title=f"{document['cluster']} / {document['broker']}")
            for key in sorted(runtime):
                out.say(f"    {key:<44} {runtime[key]}", style="dim")
            out.say("")

    run(command)


async def broker_document(admin: Admin, info: BrokerInfo) -> dict[str, Any]:
    """A broker's row of `cluster list`; if it answers, also its acknowledgement level, replication and `runtime` values."""
    document = await _row(admin, info)
    if document["state"] == "up":
        runtime = await admin.broker_runtime(info.address)
        config = await admin.broker_config(info.address)
        document |= {"ack": ack_sentence_of(config), **_replication(runtime), "runtime": runtime}
    return document


async def _row(admin: Admin, info: BrokerInfo) -> dict[str, Any]:
    row: dict[str, Any] = {
        "cluster": info.cluster,
        "broker": info.broker_name,
        "id": info.broker_id,
        "address": info.address,
    }
    try:
        runtime = await admin.broker_runtime(info.address)
    except AerobeeError as error:
        return row | {
            "version": None,
            "in_tps": None,
            "out_tps": None,
            "disk": None,
            "state": explain(error).sentence,
        }
    return row | {
        "version": runtime.get("brokerVersionDesc"),
        "in_tps": first_rate(runtime.get("putTps")),
        "out_tps": first_rate(runtime.get("getTransferredTps")),
        "disk": disk_share(runtime),
        "state": "up",
    }


def _replication(runtime: Mapping[str, str]) -> dict[str, str]:
    """Role, epoch, lag, the in-sync replicas and why others are not in sync; empty for brokers without these values (RocketMQ's)."""
    names = {
        "haRole": "role",
        "haRoleReason": "role_reason",
        "haEpoch": "epoch",
        "haConfirmed": "confirmed",
        "haReplicas": "replicas",
        "haSyncStateSet": "sync_state_set",
        "haMissing": "not_connected",
        "haMaster": "master",
        "haBehind": "bytes_behind",
        "haTrouble": "trouble",
    }
    return {name: runtime[key] for key, name in names.items() if runtime.get(key)}


def disk_share(runtime: Mapping[str, str]) -> Share | None:
    """The used share of the disk of the commit log; None when the broker does not know it (RocketMQ's: -1)."""
    ratio = first_rate(runtime.get("commitLogDiskRatio"))
    return None if ratio is None or ratio < 0 else Share(ratio)


def first_rate(text: str | None) -> float | None:
    """The first number of "10s 60s 600s" values; None when there is none."""
    try:
        return float((text or "").split()[0])
    except (IndexError, ValueError):
        return None
