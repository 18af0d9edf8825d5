"""`aerobee message`: find stored messages by id, key, place, or time."""

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
from aerobee.ops.commands.consume import GROUPLESS, shown_document
from aerobee.ops.commands.send import find_queue
from aerobee.ops.commands.topic import require_topic
from aerobee.ops.options.clients import masters, open_admin, open_pull_consumer
from aerobee.ops.options.options import AsJson, NameServers, TopicArgument
from aerobee.ops.terminal.failure import NotFound
from aerobee.ops.terminal.output import Output
from aerobee.ops.terminal.run import Stop, run
from aerobee.ops.terminal.times import moment_ms, moment_text

app = typer.Typer(
    name="message",
    help="Stored messages: by id, unique key, key, offset, or time; entries of queues.",
    no_args_is_help=True,
)


QueueArgument = Annotated[
    str,
    typer.Argument(metavar="BROKER/ID", help="The queue: its broker's name and its number, as broker-a/0."),
]


@app.command("id")
def by_id(
    message_id: Annotated[
        str, typer.Argument(metavar="ID", help="The id that the sender or the broker gave.")
    ],
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="Needed for the sender's id.")] = None,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show the message with this id, of either kind."""
    out = Output(as_json)

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            try:
                message = await admin.message(message_id, topic)
            except QueryNotFound:
                raise NotFound(
                    f"no message has the id {message_id}; retention may have removed it"
                    + ("" if topic else ", and the sender's id is found with --topic only")
                ) from None
        show_message(out, message)

    run(command)


@app.command("unique-key")
def by_unique_key(
    topic: TopicArgument,
    unique_key: Annotated[str, typer.Argument(metavar="ID", help="The id that the sender gave.")],
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show the message that the sender gave this id (UNIQ_KEY)."""
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
        int, typer.Option("--count", min=1, max=64, help="At most so many of each broker.")
    ] = 32,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """List the messages with this key, through the index."""
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
                f"no message of topic {topic} has the key {key!r} in that time; keys match exactly"
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
    """Show the message at one place of a queue."""
    out = Output(as_json)

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin, open_pull_consumer(nameserver, GROUPLESS) as consumer:
            await require_topic(admin, topic)
            place = find_queue(await consumer.queues(topic), queue, topic)
            first, end = await consumer.begin_offset(place), await consumer.end_offset(place)
            if not first <= offset < end:
                holds = f"holds {first} to {end - 1}" if end > first else "is empty"
                raise NotFound(
                    f"queue {place.broker_name}/{place.queue_id} of topic {topic} {holds}: nothing is at offset {offset}"
                )
            message = await admin.message_at(place, offset)
        show_message(out, message)

    run(command)


@app.command("entries")
def queue_entries(
    topic: TopicArgument,
    queue: QueueArgument,
    offset: Annotated[
        int, typer.Argument(metavar="OFFSET", min=0, help="The offset in the queue to begin with.")
    ],
    count: Annotated[int, typer.Option("--count", min=1, max=1_000, help="At most so many.")] = 32,
    group: Annotated[
        str | None, typer.Option("--group", "-g", help="Say which of them the filter of this group takes.")
    ] = None,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show what a consume queue says of its messages: where each lies in the log, its length, its tag's hash."""
    out = Output(as_json)

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            await require_topic(admin, topic)
            place = find_queue(subscribe_queues(await admin.topic_route(topic)), queue, topic)
            (info,) = await masters(admin, broker=place.broker_name)
            try:
                found = await admin.queue_entries(info.address, place, offset, count=count, group=group or "")
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
            "physical_offset": "offset in the log",
            "record_bytes": "bytes",
            "tag_code": "tag's hash",
        }
        if group is not None:
            columns["wanted"] = f"{group} takes it"
        out.table(
            rows,
            columns,
            empty=f"queue {place.broker_name}/{place.queue_id} holds nothing from offset {offset} on",
        )

    run(command)


@app.command("time")
def by_time(
    topic: TopicArgument,
    since: Annotated[
        str, typer.Option("--since", help="Stored at this time or later (2026-11-21T10:00, 15m).")
    ] = "15m",
    until: Annotated[str, typer.Option("--until", help="Stored before this time.")] = "now",
    count: Annotated[int, typer.Option("--count", min=1, max=10_000, help="The first so many.")] = 100,
    queue: Annotated[
        str | None, typer.Option("--queue", metavar="BROKER/ID", help="This queue only.")
    ] = None,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """List the messages that were stored in a span of time, oldest first."""
    out = Output(as_json)
    now_ms = time.time_ns() // 1_000_000
    begin_ms, end_ms = moment_ms(since, now_ms), moment_ms(until, now_ms) + (until == "now")
    if begin_ms >= end_ms:
        raise UsageError(f"--since {since} is not before --until {until}")

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin, open_pull_consumer(nameserver, GROUPLESS) as consumer:
            await require_topic(admin, topic)
            queues = await consumer.queues(topic)
            chosen = (find_queue(queues, queue, topic),) if queue is not None else queues
            messages: list[ReceivedMessage] = []
            for each in chosen:
                messages += await _stored_between(consumer, each, begin_ms, end_ms, count)
        messages.sort(key=lambda message: (message.store_timestamp, message.queue, message.queue_offset))
        if not messages:
            raise NotFound(
                f"topic {topic} holds no message that was stored between {moment_text(begin_ms)} and {moment_text(end_ms)}"
            )
        show_messages(out, messages[:count])
        if len(messages) >= count:
            out.note(f"the first {count} are shown; --count or a shorter span shows others")

    run(command)


async def _stored_between(
    consumer: PullConsumer, queue: MessageQueue, begin_ms: int, end_ms: int, count: int
) -> list[ReceivedMessage]:
    """The first `count` messages of a queue with a store time from `begin_ms` up to before `end_ms`."""
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
    """A table of messages, or their documents."""
    if out.as_json:
        out.document([shown_document(message) for message in messages])
        return
    out.table(
        [
            {
                "message_id": message.message_id,
                "place": f"{message.queue.broker_name}/{message.queue.queue_id}@{message.queue_offset}",
                "stored": moment_text(message.store_timestamp),
                "body": _short(message),
            }
            for message in messages
        ],
        {"message_id": "id", "place": "queue@offset", "stored": "stored", "body": "body"},
        empty="",
    )


def show_message(out: Output, message: ReceivedMessage) -> None:
    """All of one message, the body last."""
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
