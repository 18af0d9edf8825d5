"""`aerobee acl`: list, allow, deny, delete, copy. Equivalents of mqadmin's createAcl, updateAcl, deleteAcl, listAcl and copyAcl."""

from __future__ import annotations

from typing import Annotated

import typer

from aerobee.access.resource import parse_action, parse_resource
from aerobee.client.admin.access import CUSTOM, DEFAULT, PolicyEntryInfo, entry_text, merged_actions
from aerobee.errors import UsageError
from aerobee.host_port import NAMESERVER_DEFAULT
from aerobee.ops.commands.user import UserArgument
from aerobee.ops.options.clients import open_admin
from aerobee.ops.options.options import AsJson, ClusterName, NameServers, Yes, ask
from aerobee.ops.terminal.failure import NotFound
from aerobee.ops.terminal.output import Output
from aerobee.ops.terminal.run import Stop, run
from aerobee.words import plural

app = typer.Typer(
    name="acl", help="Permissions of users: list, allow, deny, delete, copy.", no_args_is_help=True
)
Resources = Annotated[
    list[str],
    typer.Argument(
        metavar="RESOURCE...", help="Topic:orders, Group:billing*, Cluster:*, or * for everything."
    ),
]
Actions = Annotated[
    str,
    typer.Option(
        "--action",
        "-a",
        metavar="ACTIONS",
        help="Actions, separated by commas: Pub, Sub, Create, Update, Delete, Get, List, or All.",
    ),
]
Sources = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="ADDRESSES",
        help="Client addresses, separated by commas: 10.0.0.0/8 (default: all).",
    ),
]
AsDefault = Annotated[
    bool,
    typer.Option(
        "--default", help="Set the Default policy, which applies where the Custom policy has no entry."
    ),
]

Replace = Annotated[
    bool,
    typer.Option("--replace", help="Replace the resource's entry instead of adding to its actions."),
]


@app.command("list")
def list_policies(
    user: Annotated[
        str, typer.Argument(metavar="[USER]", help="Only users whose name contains this text (default: all).")
    ] = "",
    cluster: ClusterName = None,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """List the permissions of users."""
    out = Output(as_json)

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            entries = await admin.policies(user, cluster)
        rows = [
            {
                "user": each.user,
                "policy": each.policy,
                "resource": each.resource,
                "decision": "allow" if each.is_allowed else "deny",
                "actions": list(each.actions),
                "from": list(each.source_ips),
                "at": list(each.addresses),
            }
            for each in entries
        ]
        shown = {"user": "user", "resource": "resource", "decision": "decision", "actions": "actions", "from": "source IPs", "policy": "policy", "at": "known at"}  # fmt: skip
        out.table(rows, shown, empty="no user has a permission")

    run(command)


@app.command("allow")
def allow(
    user: UserArgument,
    resources: Resources,
    actions: Actions,
    sources: Sources = None,
    default: AsDefault = False,
    replace: Replace = False,
    cluster: ClusterName = None,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Allow a user actions on resources, in addition to those already allowed. Prints the entries before and after."""
    _put(
        user,
        resources,
        actions,
        sources,
        default,
        replace,
        cluster,
        nameserver,
        Output(as_json),
        is_allowed=True,
    )


@app.command("deny")
def deny(
    user: UserArgument,
    resources: Resources,
    actions: Actions,
    sources: Sources = None,
    default: AsDefault = False,
    replace: Replace = False,
    cluster: ClusterName = None,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Deny a user actions on resources, in addition to those already denied. Prints the entries before and after."""
    _put(
        user,
        resources,
        actions,
        sources,
        default,
        replace,
        cluster,
        nameserver,
        Output(as_json),
        is_allowed=False,
    )


def _put(
    user: str,
    resources: list[str],
    actions: str,
    sources: str | None,
    default: bool,
    replace: bool,
    cluster: str | None,
    nameserver: str,
    out: Output,
    *,
    is_allowed: bool,
) -> None:
    names = [str(parse_resource(each)) for each in resources]
    words = [parse_action(each).name.capitalize() for each in actions.split(",")]
    hosts = [each.strip() for each in (sources or "").split(",") if each.strip()]

    policy = DEFAULT if default else CUSTOM

    async def command(stop: Stop) -> None:
        addresses: dict[str, None] = {}
        rows = []
        async with open_admin(nameserver) as admin:
            known = [
                each
                for each in await admin.policies(user, cluster)
                if (each.user, each.policy) == (user, policy) and each.resource in names
            ]
            plans: dict[tuple[str, ...], list[str]] = {}
            for name in names:
                entries = [] if replace else [each for each in known if each.resource == name]
                merged = merged_actions(entries, words, is_allowed=is_allowed, source_ips=hosts)
                plans.setdefault(merged, []).append(name)
            for merged, at in plans.items():
                addresses |= dict.fromkeys(
                    await admin.put_policy(
                        user,
                        at,
                        merged,
                        is_allowed=is_allowed,
                        policy=policy,
                        source_ips=hosts,
                        cluster=cluster,
                    )
                )
                for name in at:
                    before = [entry_text(each) for each in known if each.resource == name]
                    after = entry_text(
                        PolicyEntryInfo(
                            user=user,
                            resource=name,
                            actions=merged,
                            is_allowed=is_allowed,
                            source_ips=tuple(hosts),
                        )
                    )
                    rows.append({"resource": name, "before": before, "after": after})
        out.document(
            {
                "user": user,
                "resources": names,
                "actions": words,
                "is_allowed": is_allowed,
                "at": list(addresses),
                "entries": rows,
            },
            "\n".join(
                f"user {user} at {row['resource']}: {row['after']} (before: {'; '.join(row['before']) or 'no entry'})"
                for row in rows
            ),
        )

    run(command)


@app.command("delete")
def delete(
    user: UserArgument,
    resource: Annotated[
        str | None,
        typer.Argument(
            metavar="[RESOURCE]", help="Remove the permissions of this resource only (default: all)."
        ),
    ] = None,
    default: Annotated[
        bool, typer.Option("--default/--custom", help="Policy to change: Default or Custom.")
    ] = False,
    yes: Yes = False,
    cluster: ClusterName = None,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Delete a user's permissions on one resource, or all permissions of the user."""
    out = Output(as_json)
    name = str(parse_resource(resource)) if resource is not None else None
    if name is None and default:
        raise UsageError(
            "--default needs a RESOURCE: without one, the permissions of both policies are deleted"
        )
    policy = DEFAULT if default else CUSTOM
    about = f"of user {user} on {name} in the {policy} policy" if name else f"of user {user} on all resources"
    ask(f"Delete the permissions {about}?", yes)

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            addresses = await admin.delete_policy(user, name, policy=policy, cluster=cluster)
        out.document(
            {"user": user, "resource": name, "at": list(addresses)}, f"deleted the permissions {about}"
        )

    run(command)


@app.command("copy")
def copy(
    source: Annotated[
        str, typer.Argument(metavar="FROM", help="HOST:PORT of the server to copy permissions from.")
    ],
    target: Annotated[
        str,
        typer.Argument(metavar="TO", help="HOST:PORT of the server to copy them to, for example a new one."),
    ],
    user: Annotated[str | None, typer.Option("--user", help="Permissions of this user only.")] = None,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Copy permissions from one server to another. Users are not copied, because no server reveals a secret key: use `aerobee user create --at`."""
    out = Output(as_json)

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            known = {info.address for info in await admin.brokers()} | set(admin.nameserver_addresses)
            for address in (source, target):
                if address not in known:
                    raise NotFound(
                        f"{address} is not a server of this cluster; its servers: {', '.join(sorted(known))}"
                    )
            entries = await admin.copy_policies(source, target, user)
        out.document(
            {
                "from": source,
                "to": target,
                "entries": len(entries),
                "users": sorted({each.user for each in entries}),
            },
            f"copied {plural(len(entries), 'entry', 'entries')} from {source} to {target}",
        )

    run(command)
