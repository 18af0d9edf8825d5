"""`aerobee group create` and `aerobee group update`: settings of a consumer group. Equivalent of mqadmin's updateSubGroup.

A broker with autoCreateSubscriptionGroup creates a group for its first consumer. On other brokers, for example with the
profile `production`, the operator creates the group first. `update` changes only the given settings.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer

from aerobee.client import Admin
from aerobee.errors import UsageError
from aerobee.host_port import NAMESERVER_DEFAULT
from aerobee.message import check_group_name
from aerobee.ops.commands.cluster_change import AtBroker
from aerobee.ops.options.clients import masters, open_admin
from aerobee.ops.options.options import AsJson, ClusterName, GroupArgument, NameServers
from aerobee.ops.terminal.failure import NotFound
from aerobee.ops.terminal.output import Output
from aerobee.ops.terminal.run import Stop, run
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig

Retries = Annotated[
    int | None,
    typer.Option(
        "--retries", min=-1, max=100_000, help="Number of retries before a message is dead-lettered."
    ),
]
RetryQueues = Annotated[
    int | None,
    typer.Option("--retry-queues", min=1, max=65_536, help="Number of queues of the group's retry topic."),
]
Consume = Annotated[
    bool | None, typer.Option("--consume/--no-consume", help="Whether members receive messages.")
]
Broadcast = Annotated[
    bool | None,
    typer.Option("--broadcast/--no-broadcast", help="Whether members may consume in broadcasting mode."),
]
Orderly = Annotated[
    bool | None, typer.Option("--orderly/--no-orderly", help="Whether POP delivers each queue in order.")
]
Attributes = Annotated[
    list[str] | None,
    typer.Option(
        "--attribute",
        metavar="NAME=VALUE",
        help="Attribute of the group, e.g. lite.bind.topic=sessions (repeatable). Makes a lite group with lite.bind.topic.",
    ),
]
RemovedAttributes = Annotated[
    list[str] | None,
    typer.Option("--remove-attribute", metavar="NAME", help="Attribute to remove (repeatable)."),
]


def create_group(
    group: GroupArgument,
    retries: Retries = None,
    retry_queues: RetryQueues = None,
    consume: Consume = None,
    broadcast: Broadcast = None,
    orderly: Orderly = None,
    attribute: Attributes = None,
    broker: AtBroker = None,
    cluster: ClusterName = None,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Create a group, for brokers that do not create groups automatically. An existing group stays unchanged."""
    out = Output(as_json)
    check_group_name(group)
    wanted = _wanted(retries, retry_queues, consume, broadcast, orderly)
    attributes = parse_attributes(attribute)

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            there = await _existing(admin, group, cluster, broker)
            fresh = replace(SubscriptionGroupConfig(group, attributes=attributes), **wanted)
            other = [
                address
                for address, config in there.items()
                if config is not None
                and (
                    any(getattr(config, name) != value for name, value in wanted.items())
                    or any(config.attributes.get(name) != value for name, value in attributes.items())
                )
            ]
            if other:
                raise UsageError(
                    f"group {group} exists at {', '.join(other)} with other settings: `aerobee group update {group}` changes them"
                )
            created = [address for address, config in there.items() if config is None]
            for address in created:
                await admin.put_groups(address, [fresh])
        brokers = sorted(there)
        verb = "is created" if created else "exists already"
        out.document(
            {"group": group, "brokers": brokers, "created": bool(created)},
            f"group {group} {verb} at {', '.join(brokers)}",
        )

    run(command)


def update_group(
    group: GroupArgument,
    retries: Retries = None,
    retry_queues: RetryQueues = None,
    consume: Consume = None,
    broadcast: Broadcast = None,
    orderly: Orderly = None,
    attribute: Attributes = None,
    remove_attribute: RemovedAttributes = None,
    broker: AtBroker = None,
    cluster: ClusterName = None,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Change the given settings of an existing group; the rest stays unchanged."""
    out = Output(as_json)
    check_group_name(group)
    wanted = _wanted(retries, retry_queues, consume, broadcast, orderly)
    attributes = parse_attributes(attribute) | {f"-{name}": "" for name in remove_attribute or ()}
    if not wanted and not attributes:
        raise UsageError(
            "no change is given: use --retries, --retry-queues, --consume, --broadcast, --orderly, --attribute or --remove-attribute"
        )

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            there = {
                address: config
                for address, config in (await _existing(admin, group, cluster, broker)).items()
                if config is not None
            }
            if not there:
                raise NotFound(
                    f"group {group} does not exist there; `aerobee group create {group}` creates it"
                )
            for address, config in there.items():
                await admin.put_groups(address, [replace(config, attributes=attributes, **wanted)])
        brokers = sorted(there)
        changes = {name.replace("_", " "): value for name, value in wanted.items()} | attributes
        changed = ", ".join(f"{name} {value}".rstrip() for name, value in changes.items())
        rows = [{"name": name.lstrip("-"), "value": value or None} for name, value in attributes.items()]
        out.document(
            {"group": group, "changed": wanted, "attributes": rows, "brokers": brokers},
            f"set {changed} for group {group} at {', '.join(brokers)}",
        )

    run(command)


def _wanted(
    retries: int | None,
    retry_queues: int | None,
    consume: bool | None,
    broadcast: bool | None,
    orderly: bool | None,
) -> dict[str, Any]:
    """The settings given on the command line, by their names in SubscriptionGroupConfig."""
    values = {
        "retry_max_times": retries,
        "retry_queue_nums": retry_queues,
        "consume_enable": consume,
        "consume_broadcast_enable": broadcast,
        "consume_message_orderly": orderly,
    }
    return {name: value for name, value in values.items() if value is not None}


def parse_attributes(words: list[str] | None) -> dict[str, str]:
    """{name: value} of `--attribute NAME=VALUE`. Raises UsageError."""
    found = {}
    for word in words or ():
        name, separator, value = word.partition("=")
        if not separator or not name or not value:
            raise UsageError(f"--attribute is {word!r}, expected NAME=VALUE, e.g. lite.bind.topic=sessions")
        found[name] = value
    return found


async def _existing(
    admin: Admin, group: str, cluster: str | None, broker: str | None
) -> dict[str, SubscriptionGroupConfig | None]:
    """Address of each chosen master -> the group's settings there, None if the master does not know the group."""
    return {
        info.address: (await admin.group_table(info.address)).get(group)
        for info in await masters(admin, cluster=cluster, broker=broker)
    }
