"""`aerobee message`: find stored messages by id, key, offset, or time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated

import typer

from aerobee.client import PullConsumer, ReceivedMessage
from aerobee.client.base.topic_route import subscribe_queues
from aerobee.errors import QueryNotFound, RemoteSystemError, UsageError
from aerobee.host_port import NAMESERVER_DEFAULT
from aerobee.message import MessageQueue
from aerobee.ops.commands.consume import shown_document
from aerobee.ops.commands.send import find_queue
from aerobee.ops.commands.topic import require_topic
from aerobee.ops.options.clients import masters, open_admin, open_pull_consumer
from aerobee.ops.options.options import AsJson, NameServers, TopicArgument
from aerobee.ops.terminal.failure import NotFound
from aerobee.ops.terminal.output import Output
from aerobee.ops.terminal.run import Stop, run
from aerobee.ops.terminal.times import moment_ms, moment_text
from aerobee.system_names import TOOLS_GROUP

app = typer.Typer(
    name="message",
    help="Stored messages: by id, unique key, key, offset, or time; queue entries.",
    no_args_is_help=True,
)


QueueArgument = Annotated[
    str,
    typer.Argument(metavar="BROKER/ID", help="The queue: broker name and queue id, for example broker-a/0."),
]


@app.command("id")
def by_id(
    message_id: Annotated[
        str, typer.Argument(metavar="ID", help="Unique key (set by the producer) or offset message id.")
    ],
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", help="The topic; required for a unique key.")
    ] = None,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show the message with this unique key or offset message id."""
    out = Output(as_json)

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            try:
                message = await admin.message(message_id, topic)
            except QueryNotFound:
                raise NotFound(
                    f"no message has the id {message_id}; it may have expired"
                    + ("" if topic else "; a unique key needs --topic")
                ) from None
        show_message(out, message)

    run(command)


@app.command("unique-key")
def by_unique_key(
    topic: TopicArgument,
    unique_key: Annotated[str, typer.Argument(metavar="ID", help="The id that the producer set.")],
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show the message with this unique key, set by its producer (UNIQ_KEY)."""
    by_id(unique_key, topic, nameserver, as_json)


@app.command("key")
def by_key(
    topic: TopicArgument,
    key: Annotated[str, typer.Argument(metavar="KEY", help="One of the message's keys.")],
    since: Annotated[
        str | None, typer.Option("--since", help="Stored after this time (2026-11-21T10:00, 15m).")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", help="Stored before this time.")] = None,
    count: Annotated[
        int, typer.Option("--count", min=1, max=64, help="Maximum number of messages of each broker.")
    ] = 32,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """List the messages with this key, by an index lookup."""
    out = Output(as_json)
    now_ms = time.time_ns() // 1_000_000
    begin_ms = moment_ms(since, now_ms) if since else 0
    end_ms = moment_ms(until, now_ms) if until else now_ms + 86_400_000  # a broker's clock may be ahead

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            await require_topic(admin, topic)
            try:
                messages: Sequence[ReceivedMessage] = await admin.messages_by_key(
                    topic, key, count_max=count, begin_ms=begin_ms, end_ms=end_ms
                )
            except QueryNotFound:
                messages = ()
        if not messages:
            raise NotFound(
                f"no message of topic {topic} in that time range has the key {key!r}; keys match exactly"
            )
        show_messages(out, messages)

    run(command)


@app.command("offset")
def by_offset(
    topic: TopicArgument,
    queue: QueueArgument,
    offset: Annotated[
        int, typer.Argument(metavar="OFFSET", min=0, help="The message's offset in the queue.")
    ],
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show the message at an offset of a queue."""
    out = Output(as_json)

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin, open_pull_consumer(nameserver, TOOLS_GROUP) as consumer:
            await require_topic(admin, topic)
            found = find_queue(await consumer.queues(topic), queue, topic)
            first, end = await consumer.begin_offset(found), await consumer.end_offset(found)
            if not first <= offset < end:
                holds = f"has offsets {first} to {end - 1}" if end > first else "is empty"
                raise NotFound(
                    f"no message at offset {offset}: queue {found.broker_name}/{found.queue_id} of topic {topic} {holds}"
                )
            message = await admin.message_at(found, offset)
        show_message(out, message)

    run(command)


@app.command("entries")
def queue_entries(
    topic: TopicArgument,
    queue: QueueArgument,
    offset: Annotated[int, typer.Argument(metavar="OFFSET", min=0, help="Queue offset of the first entry.")],
    count: Annotated[int, typer.Option("--count", min=1, max=1_000, help="Maximum number of entries.")] = 32,
    group: Annotated[
        str | None,
        typer.Option("--group", "-g", help="Show which entries match the filter of this consumer group."),
    ] = None,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show entries of a consume queue: physical offset in the commit log, record size, hash of the tag."""
    out = Output(as_json)

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            await require_topic(admin, topic)
            chosen = find_queue(subscribe_queues(await admin.topic_route(topic)), queue, topic)
            (info,) = await masters(admin, broker=chosen.broker_name)
            try:
                found = await admin.queue_entries(
                    info.address, chosen, offset, count=count, group=group or ""
                )
            except RemoteSystemError:
                found = ()  # a queue without a message has no file
        rows = [
            {
                "offset": each.offset,
                "physical_offset": each.physical_offset,
                "record_bytes": each.record_bytes,
                "tag_code": each.tag_code,
                "wanted": each.is_wanted,
            }
            for each in found
        ]
        columns = {
            "offset": "offset",
            "physical_offset": "physical offset",
            "record_bytes": "record bytes",
            "tag_code": "tag's hash",
        }
        if group is not None:
            columns["wanted"] = f"matches {group}"
        out.table(
            rows,
            columns,
            empty=f"queue {chosen.broker_name}/{chosen.queue_id} has no entries at offset {offset} or after",
        )

    run(command)


@app.command("time")
def by_time(
    topic: TopicArgument,
    since: Annotated[
        str, typer.Option("--since", help="Stored at this time or later (2026-11-21T10:00, 15m).")
    ] = "15m",
    until: Annotated[str, typer.Option("--until", help="Stored before this time.")] = "now",
    count: Annotated[
        int, typer.Option("--count", min=1, max=10_000, help="Maximum number of messages.")
    ] = 100,
    queue: Annotated[
        str | None, typer.Option("--queue", metavar="BROKER/ID", help="List the messages of this queue only.")
    ] = None,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """List the messages that were stored in a time range, oldest first."""
    out = Output(as_json)
    now_ms = time.time_ns() // 1_000_000
    begin_ms, end_ms = moment_ms(since, now_ms), moment_ms(until, now_ms) + (until == "now")
    if begin_ms >= end_ms:
        raise UsageError(f"--since {since} is not before --until {until}")

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin, open_pull_consumer(nameserver, TOOLS_GROUP) as consumer:
            await require_topic(admin, topic)
            queues = await consumer.queues(topic)
            chosen = (find_queue(queues, queue, topic),) if queue is not None else queues
            messages: list[ReceivedMessage] = []
            for each in chosen:
                messages += await _stored_between(consumer, each, begin_ms, end_ms, count)
        messages.sort(key=lambda message: (message.store_timestamp, message.queue, message.queue_offset))
        if not messages:
            raise NotFound(
                f"topic {topic} has no message stored between {moment_text(begin_ms)} and {moment_text(end_ms)}"
            )
        show_messages(out, messages[:count])
        if len(messages) >= count:
            out.note(f"showing the first {count}; use --count or a shorter time range to see others")

    run(command)


async def _stored_between(
    consumer: PullConsumer, queue: MessageQueue, begin_ms: int, end_ms: int, count: int
) -> list[ReceivedMessage]:
    """The first `count` messages of a queue with begin_ms <= store time < end_ms."""
    at, end = await consumer.offset_for_time(queue, begin_ms), await consumer.end_offset(queue)
    found: list[ReceivedMessage] = []
    await consumer.assign((queue,))
    await consumer.seek(queue, max(0, at))
    while len(found) < count and (consumer.position(queue) or 0) < end:
        for message in await consumer.poll():
            if message.store_timestamp >= end_ms:
                return found[:count]
            if message.store_timestamp >= begin_ms:
                found.append(message)
    return found[:count]


def show_messages(out: Output, messages: Sequence[ReceivedMessage]) -> None:
    """Print a table of messages, or with --json their documents."""
    if out.as_json:
        out.document([shown_document(message) for message in messages])
        return
    out.table(
        [
            {
                "message_id": message.message_id,
                "position": f"{message.queue.broker_name}/{message.queue.queue_id}@{message.queue_offset}",
                "stored": moment_text(message.store_timestamp),
                "body": _short(message),
            }
            for message in messages
        ],
        {"message_id": "message id", "position": "queue@offset", "stored": "stored at", "body": "body"},
        empty="",
    )


def show_message(out: Output, message: ReceivedMessage) -> None:
    """Print all fields of one message, the body last."""
    document = shown_document(message)
    if out.as_json:
        out.document(document)
        return
    body = document.pop("body")
    for key in ("born_timestamp", "store_timestamp"):
        document[key] = moment_text(document[key])
    out.facts(document)
    out.say("")
    out.say(body)


def _short(message: ReceivedMessage) -> str:
    body, damage = message.body_or_stored()
    text = body[:60].decode(errors="replace").replace("\n", " ")
    return ("(damaged) " if damage else "") + text + ("…" if len(body) > 60 else "")
