"""`aerobee consume`: print messages as they arrive, with a consumer group that commits offsets or without a group.

Without --group the command reads every queue of the topic and commits nothing, like `tail -f`. With --group the
process joins the group: members share the queues, and the offset is committed after the printing, so that each message
is printed at least once. The offset also passes messages that --tags or --sql filters out. With --group and --pop the
broker hands out single messages (docs/pop.md); each is acknowledged after the printing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import typer

from aerobee.client import (
    ConsumeFrom,
    PullConsumer,
    PullConsumerConfig,
    ReceivedMessage,
    SimpleConsumer,
    SimpleConsumerConfig,
    Sql,
)
from aerobee.errors import MessageDamaged, NoPermission, TopicNotExist, UsageError
from aerobee.host_port import NAMESERVER_DEFAULT
from aerobee.message import MessageQueue
from aerobee.ops.commands.send import find_queue
from aerobee.ops.commands.topic import missing_topic
from aerobee.ops.options import consume_options as options
from aerobee.ops.options.clients import open_admin, open_pull_consumer, open_simple_consumer
from aerobee.ops.options.options import AsJson, NameServers, TopicArgument
from aerobee.ops.terminal.message_format import parse_format
from aerobee.ops.terminal.output import Output, body_text, host_text
from aerobee.ops.terminal.run import Stop, run
from aerobee.ops.terminal.terminal import shown
from aerobee.ops.terminal.times import moment_ms, moment_text
from aerobee.system_names import TOOLS_GROUP
from aerobee.words import plural

POLL_S = 1.0
POP_COUNT = 32  # messages of one pop


@dataclass(frozen=True, slots=True)
class Start:
    """Where to start: "first", "last", "time" with ms, or "offset" with a queue offset."""

    kind: str
    value: int = 0


def register(app: typer.Typer) -> None:
    app.command("consume")(consume)


def consume(
    topic: TopicArgument,
    start: options.From = "last",
    tags: options.Tags = "*",
    sql: options.SqlFilter = None,
    count: options.Count = 0,
    follow: options.Follow = True,
    group: options.Group = None,
    queue: options.Queue = None,
    verbose: options.Verbose = False,
    pop: options.Pop = False,
    invisible_s: options.Invisible = 60.0,
    raw: options.Raw = False,
    form: options.Form = None,
    trace: options.Trace = False,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Print the bodies of a topic's messages, one a line, as they arrive."""
    out = Output(as_json)
    if (raw or form is not None) + as_json + verbose > 1 or (raw and form is not None):
        raise UsageError(
            "--raw, --format, --verbose and --json are mutually exclusive: choose one output format"
        )
    write = _writer(raw, form)
    begin = parse_start(start, time.time_ns() // 1_000_000)
    if group is not None and (queue is not None or begin.kind == "offset"):
        raise UsageError("a group shares all queues: --queue and --from offset:N exclude --group")
    if sql is not None and tags != "*":
        raise UsageError(
            "--tags and --sql are mutually exclusive: --sql can test the tag, \"TAGS = 'A' AND price > 5\""
        )
    wanted = tags if sql is None else Sql(sql)
    if pop:
        if group is None or begin.kind == "time" or trace:
            raise UsageError("--pop needs --group, supports --from first and last only, and excludes --trace")
        config = SimpleConsumerConfig(invisible_s=invisible_s, from_begin=begin.kind == "first")
        reader = _Reader(out, verbose=verbose, limit=count, write=write)
        run(lambda stop: _pop(stop, nameserver, topic, group, wanted, config, reader, follow))
        return

    async def command(stop: Stop) -> None:
        reader = _Reader(out, verbose=verbose, limit=count, write=write)
        config = PullConsumerConfig(
            auto_commit=False, consume_from=_consume_from(begin), consume_timestamp_ms=begin.value
        )
        async with open_pull_consumer(
            nameserver, group or TOOLS_GROUP, config=config, trace=trace
        ) as consumer:
            try:
                if group is None:
                    await _assign(consumer, topic, wanted, queue, begin)
                else:
                    await consumer.subscribe(topic, wanted)
            except TopicNotExist:
                async with open_admin(nameserver) as admin:
                    raise await missing_topic(admin, topic) from None
            await stop.or_done(_read(consumer, reader, commit=group is not None, follow=follow))
        reader.end()

    run(command)


def _writer(raw: bool, form: str | None) -> Callable[[ReceivedMessage], bytes] | None:
    if raw:
        return parse_format("%s")
    return None if form is None else parse_format(form)


def parse_start(text: str, now_ms: int) -> Start:
    """Parse --from. Raises UsageError that lists the accepted forms."""
    text = {"earliest": "first", "latest": "last"}.get(text, text)  # the words of `aerobee offset reset`
    if text in ("first", "last"):
        return Start(text)
    if text.startswith("offset:"):
        number = text.removeprefix("offset:")
        if not number.isdecimal():
            raise UsageError(f"--from {text!r}: write offset: and a number, for example offset:120")
        return Start("offset", int(number))
    try:
        return Start("time", moment_ms(text, now_ms))
    except UsageError:
        raise UsageError(
            f"--from {text!r}: write first, last, offset:N, a time like 2026-11-21T10:00:00, "
            "or 15m for 15 minutes ago"
        ) from None


def message_document(message: ReceivedMessage) -> dict[str, Any]:
    """A message as one JSON document. `encoding` says how `body` is written: utf-8 or hex. Raises MessageDamaged."""
    return _document(message, message.body)


def shown_document(message: ReceivedMessage) -> dict[str, Any]:
    """As message_document; for a damaged message the body as stored, and `damage` with the reason."""
    body, damage = message.body_or_stored()
    return _document(message, body) | ({"damage": damage} if damage else {})


def _document(message: ReceivedMessage, stored: bytes) -> dict[str, Any]:
    body, encoding = body_text(stored)
    return {
        "topic": message.topic,
        "broker": message.queue.broker_name,
        "queue_id": message.queue.queue_id,
        "queue_offset": message.queue_offset,
        "message_id": message.message_id,
        "offset_message_id": message.offset_message_id,
        "tag": message.tag,
        "keys": list(message.keys),
        "properties": dict(message.properties),
        "born_timestamp": message.born_timestamp,
        "born_host": host_text(message.born_host),
        "store_timestamp": message.store_timestamp,
        "store_host": host_text(message.store_host),
        "reconsume_times": message.reconsume_times,
        "body": body,
        "encoding": encoding,
    }


Received = TypeVar("Received", bound=ReceivedMessage)


class _Reader:
    """Prints messages and counts them; `done` when the limit is reached."""

    def __init__(
        self,
        out: Output,
        *,
        verbose: bool,
        limit: int,
        write: Callable[[ReceivedMessage], bytes] | None = None,
    ) -> None:
        self._out = out
        self._write = write or self._line
        # Bodies are untrusted bytes: control sequences in them must not reach the terminal.
        self._clean = shown if sys.stdout.isatty() else None
        self._verbose = verbose
        self._limit = limit
        self.printed = 0
        self.shown = 0  # messages of the last batch that were within the limit
        self.damaged = 0

    @property
    def done(self) -> bool:
        return bool(self._limit) and self.printed >= self._limit

    def left(self, most: int) -> int:
        """The number of messages that may still be printed, at most `most`."""
        return min(most, self._limit - self.printed) if self._limit else most

    def end(self) -> None:
        """Print the number of messages. Raises MessageDamaged when some could not be printed."""
        if not self._out.as_json:
            self._out.note(plural(self.printed, "message"))
        if self.damaged:
            raise MessageDamaged(f"skipped {plural(self.damaged, 'damaged message')}, named above")

    def show(self, messages: Sequence[Received]) -> list[Received]:
        """Print messages up to the limit and return those printed. A damaged message is named and skipped.

        `shown` becomes the number of messages within the limit, damaged ones included.
        """
        self.shown = self.left(len(messages))
        printed = []
        for message in messages[: self.shown]:
            try:
                self._print(message)
            except MessageDamaged as error:
                self._out.note(str(error))
                self.damaged += 1
            else:
                printed.append(message)
        self.printed += len(printed)
        sys.stdout.buffer.flush()
        return printed

    def _print(self, message: ReceivedMessage) -> None:
        if self._out.as_json:
            self._out.line(message_document(message), "")
            return
        data = self._write(message)
        sys.stdout.buffer.write(data if self._clean is None else self._clean(data))

    def _line(self, message: ReceivedMessage) -> bytes:
        head = _head(message).encode() if self._verbose else b""
        return head + message.body + b"\n"


async def _pop(
    stop: Stop,
    nameserver: str,
    topic: str,
    group: str,
    wanted: str,
    config: SimpleConsumerConfig,
    reader: _Reader,
    follow: bool,
) -> None:
    """Receive, print, acknowledge. Receives no more messages than the limit allows to print."""

    async def receive(consumer: SimpleConsumer) -> None:
        while not reader.done:
            messages = await consumer.receive(reader.left(POP_COUNT), wait_s=POLL_S)
            await consumer.ack_all(
                reader.show(messages)
            )  # a damaged message is redelivered, and finally dead-lettered
            if not messages and not follow:
                return

    try:
        async with open_simple_consumer(
            nameserver, group, subscriptions={topic: wanted}, config=config
        ) as consumer:
            await stop.or_done(receive(consumer))
    except TopicNotExist:
        async with open_admin(nameserver) as admin:
            raise await missing_topic(admin, topic) from None
    reader.end()


async def _assign(consumer: PullConsumer, topic: str, tags: str, queue: str | None, begin: Start) -> None:
    queues = await consumer.queues(topic)
    chosen = (find_queue(queues, queue, topic),) if queue is not None else queues
    await consumer.assign(chosen, tags)
    for each in chosen:
        if begin.kind == "first":
            await consumer.seek_to_begin(each)
        elif begin.kind == "last":
            await consumer.seek_to_end(each)
        elif begin.kind == "time":
            await consumer.seek_to_time(each, begin.value)
        else:
            await consumer.seek(each, begin.value)


async def _read(consumer: PullConsumer, reader: _Reader, *, commit: bool, follow: bool) -> None:
    committed: dict[MessageQueue, int] = {}
    while not reader.done:
        messages = await consumer.poll(timeout_s=POLL_S)
        reader.show(messages)
        if commit:
            offsets = _offsets_to_commit(consumer, messages[reader.shown :])
            changed = {queue: offset for queue, offset in offsets.items() if committed.get(queue) != offset}
            if changed:
                await consumer.commit(changed)
            committed = offsets
        if messages:
            continue
        for failure in consumer.failures:
            if isinstance(failure, NoPermission):
                raise failure  # no message arrives until an operator grants the permission
        if not follow and await _at_end(consumer):
            return


def _offsets_to_commit(
    consumer: PullConsumer, unprinted: Sequence[ReceivedMessage]
) -> dict[MessageQueue, int]:
    """The next offset of the group in each queue: behind the printed messages and those that the filter left out."""
    offsets = {queue: consumer.position(queue) for queue in consumer.assigned}
    for message in reversed(unprinted):
        offsets[message.queue] = message.queue_offset
    return {queue: offset for queue, offset in offsets.items() if offset is not None}


async def _at_end(consumer: PullConsumer) -> bool:
    assigned = consumer.assigned
    for queue in assigned:
        position = consumer.position(queue)
        if position is None or position < await consumer.end_offset(queue):
            return False
    return bool(assigned)


def _consume_from(begin: Start) -> ConsumeFrom:
    return {"first": ConsumeFrom.FIRST, "time": ConsumeFrom.TIMESTAMP}.get(begin.kind, ConsumeFrom.LAST)


def _head(message: ReceivedMessage) -> str:
    parts = [
        f"{message.queue.broker_name}/{message.queue.queue_id}@{message.queue_offset}",
        moment_text(message.store_timestamp),
    ]
    if message.tag:
        parts.append(f"tag={message.tag}")
    if message.keys:
        parts.append(f"keys={','.join(message.keys)}")
    return "[" + " ".join(parts) + "] "
