"""`aerobee cluster export`, `import`: write topics and groups of brokers to a file, and create them from a file.

    {"brokers": {"broker-a": {"topics": [TopicConfig, …], "groups": [SubscriptionGroupConfig, …],
                              "schedules": [{… as RecurringSchedule.to_dict, "body": base64}], "settings": {…}}}}

Field names are RocketMQ's. import also reads the output of mqadmin's exportMetadata (topicConfigTable,
subscriptionGroupTable) and the lists that mqadmin's updateTopicList and updateSubGroupList read: entries of these
files apply to every broker.
"""

from __future__ import annotations

import os
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from aerobee.client import Admin
from aerobee.client.admin.schedules import decoded_body
from aerobee.errors import MalformedFrame, RequestNotSupported, UsageError
from aerobee.host_port import NAMESERVER_DEFAULT
from aerobee.message import DLQ_PREFIX, RETRY_PREFIX, check_topic_name
from aerobee.ops.commands.cluster_change import AtBroker
from aerobee.ops.commands.topic import topic_kind
from aerobee.ops.options.clients import masters, open_admin
from aerobee.ops.options.options import AsJson, ClusterName, NameServers, Yes, ask
from aerobee.ops.terminal.output import Output, to_json
from aerobee.ops.terminal.run import Stop, run
from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields
from aerobee.remoting.body.recurring_schedule import RecurringSchedule
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.system_names import is_hidden_group
from aerobee.words import plural

FILE_BYTES_MAX = 256 << 20
EVERY = "*"  # the broker name for entries that apply to every broker


@dataclass(frozen=True, slots=True)
class StoredSchedule:
    """A recurring schedule and the body of its messages."""

    schedule: RecurringSchedule
    body: bytes

    @property
    def name(self) -> str:
        return self.schedule.name

    def to_dict(self) -> dict[str, Any]:
        return self.schedule.to_dict() | {"body": b64encode(self.body).decode()}


@dataclass(frozen=True, slots=True)
class Tables:
    """Current or wanted topics, groups and schedules of one broker."""

    topics: tuple[TopicConfig, ...]
    groups: tuple[SubscriptionGroupConfig, ...]
    schedules: tuple[StoredSchedule, ...] = ()


def export_cluster(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to create; it must not exist.")],
    broker: AtBroker = None,
    cluster: ClusterName = None,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Write the topics, groups, schedules and settings of every master to a file, without offsets and messages."""
    out = Output(as_json)
    if file.exists():
        raise UsageError(f"{file} exists already: choose another file, or remove it")

    async def command(stop: Stop) -> None:
        document: dict[str, dict[str, Any]] = {}
        async with open_admin(nameserver) as admin:
            for info in await masters(admin, cluster=cluster, broker=broker):
                found = await _tables(admin, info.address)
                document[info.broker_name] = {
                    "topics": [each.to_dict() for each in found.topics],
                    "groups": [each.to_dict() for each in found.groups],
                    "schedules": [each.to_dict() for each in found.schedules],
                    "settings": await admin.broker_config(info.address),
                }
        _write_new(file, to_json({"brokers": document}) + "\n")
        topics = len({each["topicName"] for one in document.values() for each in one["topics"]})
        groups = len({each["groupName"] for one in document.values() for each in one["groups"]})
        schedules = sum(len(one["schedules"]) for one in document.values())
        counted = [(topics, "topic"), (groups, "group"), *([(schedules, "schedule")] if schedules else [])]
        listed = ", ".join(plural(number, what) for number, what in counted)
        out.document(
            {
                "file": str(file),
                "brokers": sorted(document),
                "topics": topics,
                "groups": groups,
                "schedules": schedules,
            },
            f"exported {listed} of {', '.join(sorted(document))} to {file}",
        )

    run(command)


def _write_new(file: Path, text: str) -> None:
    """Create the file with mode 0600, because settings contain addresses and key paths. Raises UsageError."""
    try:
        with open(
            file, "x", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600)
        ) as target:
            target.write(text)
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error}") from error


def import_cluster(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Output of `aerobee cluster export` or of mqadmin.")
    ],
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="BROKER_NAME",
            help="Create the topics and groups of this broker in the file on every master.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the changes without making them.")] = False,
    broker: AtBroker = None,
    yes: Yes = False,
    cluster: ClusterName = None,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Create or update topics and groups from a file, and create its schedules. Deletes nothing and changes no broker settings."""
    out = Output(as_json)
    tables = read_tables(file)

    async def command(stop: Stop) -> None:
        rows: list[dict[str, Any]] = []
        async with open_admin(nameserver) as admin:
            plans = []
            for info in await masters(admin, cluster=cluster, broker=broker):
                wanted = _wanted(tables, info.broker_name, source, file)
                there = await _tables(admin, info.address)
                plan = changes(wanted, there)
                plans.append((info.address, plan))
                rows += [
                    {"broker": info.broker_name, "kind": kind, "name": name, "change": change}
                    for kind, name, change in _described(plan, there)
                ]
            if rows and not dry_run:
                ask(f"Make {plural(len(rows), 'change')}?", yes)
                for address, plan in plans:
                    await admin.put_topics(address, plan.topics)
                    await admin.put_groups(address, plan.groups)
                    await _create_schedules(admin, address, plan.schedules)
        out.table(
            rows,
            {"broker": "broker", "kind": "kind", "name": "name", "change": "would be" if dry_run else "was"},
            empty="nothing to change: all topics and groups match the file, and its schedules exist",
        )

    run(command)


def read_tables(file: Path) -> dict[str, Tables]:
    """Broker name, or EVERY -> its topics and groups in the file. Raises UsageError."""
    try:
        if file.stat().st_size > FILE_BYTES_MAX:
            raise UsageError(f"{file} is larger than {FILE_BYTES_MAX} bytes")
        tree = fastjson.loads(file.read_bytes(), fastjson.TRUSTED_BYTES_MAX)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error}") from error
    except MalformedFrame as error:
        raise UsageError(f"{file} is not JSON: {error}") from error
    try:
        return _read_tree(tree)
    except (MalformedFrame, UsageError) as error:
        raise UsageError(f"{file}: {error}") from error


def _read_tree(tree: object) -> dict[str, Tables]:
    if isinstance(tree, list):  # the format of updateTopicList and updateSubGroupList
        rows = [json_fields.as_object(row, "an entry") for row in tree]
        if any(("topicName" in row) == ("groupName" in row) for row in rows):
            raise MalformedFrame("an entry must have either a topicName or a groupName")
        return {
            EVERY: _tables_of(
                [row for row in rows if "topicName" in row], [row for row in rows if "groupName" in row]
            )
        }
    document = json_fields.as_object(tree, "the file")
    if "brokers" in document:
        brokers = json_fields.mapping(document, "brokers")
        return {
            name: _tables_of(
                json_fields.objects(part, "topics"),
                json_fields.objects(part, "groups"),
                json_fields.objects(part, "schedules") if "schedules" in part else (),
            )
            for name in brokers
            for part in (json_fields.mapping(brokers, name),)
        }
    if "topicConfigTable" in document or "subscriptionGroupTable" in document:
        topics, groups = (
            _named_rows(document, table, field)
            for table, field in (("topicConfigTable", "topicName"), ("subscriptionGroupTable", "groupName"))
        )
        return {EVERY: _tables_of(topics, groups)}
    raise MalformedFrame("the file has neither brokers nor topicConfigTable nor subscriptionGroupTable")


def _named_rows(document: Mapping[str, Any], table: str, field: str) -> list[dict[str, Any]]:
    """The entries of a table whose keys are names. Raises MalformedFrame when an entry's name differs from its key."""
    rows = []
    for name, entry in json_fields.mapping(document, table).items():
        row = {field: name, **json_fields.as_object(entry, name)}
        if row[field] != name:
            raise MalformedFrame(f"{table} has the entry {row[field]!r:.335} under the key {name!r:.335}")
        rows.append(row)
    return rows


def _tables_of(
    topics: Iterable[Mapping[str, Any]],
    groups: Iterable[Mapping[str, Any]],
    schedules: Iterable[Mapping[str, Any]] = (),
) -> Tables:
    """Raises MalformedFrame, UsageError: the check precedes all changes, while a broker would refuse after some of them."""
    found = Tables(
        tuple(TopicConfig.from_dict(row) for row in topics),
        tuple(SubscriptionGroupConfig.from_dict(row) for row in groups),
        tuple(StoredSchedule(RecurringSchedule.from_dict(row), decoded_body(row)) for row in schedules),
    )
    topic_names, group_names = (
        [each.topic_name for each in found.topics],
        [each.group_name for each in found.groups],
    )
    for each in found.schedules:
        check_topic_name(each.schedule.topic)
        each.schedule.check()
    for name in topic_names:
        check_topic_name(name)
    if "" in group_names:
        raise MalformedFrame("a group has no groupName")
    schedule_names = [each.name for each in found.schedules]
    for kind, names in (("topic", topic_names), ("group", group_names), ("schedule", schedule_names)):
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise MalformedFrame(f"{kind} {twice[0]} occurs twice")
    return found


def _wanted(tables: Mapping[str, Tables], name: str, source: str | None, file: Path) -> Tables:
    """The topics and groups of the file for a broker. Raises UsageError."""
    if source is not None and source not in tables:
        raise UsageError(f"{file} has no broker {source}; its brokers: {', '.join(sorted(tables)) or 'none'}")
    found = tables.get(source or name, tables.get(EVERY))
    if found is None:
        raise UsageError(
            f"{file} has no broker {name}; its brokers: {', '.join(sorted(tables)) or 'none'}; "
            f"--from BROKER_NAME applies one of them to every master"
        )
    return found


def changes(wanted: Tables, there: Tables) -> Tables:
    """The entries of `wanted` that do not exist in `there` or differ; of schedules those that do not exist."""
    known = {each.name for each in there.schedules}
    topics = {each.topic_name: each for each in there.topics}
    groups = {each.group_name: each for each in there.groups}
    return Tables(
        tuple(each for each in wanted.topics if topics.get(each.topic_name) != each),
        tuple(each for each in wanted.groups if groups.get(each.group_name) != each),
        tuple(each for each in wanted.schedules if each.name not in known),
    )


def _described(plan: Tables, there: Tables) -> Iterable[tuple[str, str, str]]:
    topics = {each.topic_name for each in there.topics}
    groups = {each.group_name for each in there.groups}
    for topic in plan.topics:
        yield "topic", topic.topic_name, "changed" if topic.topic_name in topics else "created"
    for group in plan.groups:
        yield "group", group.group_name, "changed" if group.group_name in groups else "created"
    for schedule in plan.schedules:
        yield "schedule", schedule.name, "created"


async def _create_schedules(admin: Admin, address: str, schedules: Iterable[StoredSchedule]) -> None:
    """Create them as they were: a paused one does not tick."""
    for each in schedules:
        await admin.create_schedule(each.schedule, each.body, broker=address)
        if each.schedule.is_paused:
            await admin.change_schedule(each.name, "pause", broker=address)


async def _schedules(admin: Admin, address: str) -> tuple[StoredSchedule, ...]:
    """The schedules of a broker. A broker of RocketMQ has no schedules."""
    try:
        found = await admin.schedules(broker=address)
    except RequestNotSupported:
        return ()
    return tuple(
        [
            StoredSchedule(
                info.schedule, await admin.schedule_body(info.schedule.name, info.schedule.topic, address)
            )
            for info in found
        ]
    )


async def _tables(admin: Admin, address: str) -> Tables:
    """Topics and groups of users. A broker creates system topics, and the retry and dead-letter topics of a group, itself."""
    system = set(await admin.system_topics())
    topics = await admin.topic_table(address)
    groups = await admin.group_table(address)
    return Tables(
        tuple(
            topics[name]
            for name in sorted(topics)
            if topic_kind(name, system) == "user" and not name.startswith((RETRY_PREFIX, DLQ_PREFIX))
        ),
        tuple(groups[name] for name in sorted(groups) if not is_hidden_group(name)),
        await _schedules(admin, address),
    )
