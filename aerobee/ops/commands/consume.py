"""`aerobee consume`: print messages as they come, with a group that keeps its place or without one.

Without --group every queue of the topic is read and nothing is kept at the broker: like `tail -f`. With --group this
process becomes a member: queues are shared with the other members, and the place is committed after the printing, so
that a message is printed at least once. The place also passes messages that --tags or --sql leaves out. With --pop as
well the broker hands out message by message (docs/pop.md): each is acknowledged after the printing.
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
from aerobee.words import plural

GROUPLESS = "TOOLS_CONSUMER"  # known to every broker, so that nothing is created by looking
POLL_S = 1.0
POP_COUNT = 32  # messages of one pop


@dataclass(frozen=True, slots=True)
class Start:
    """Where to begin: "first", "last", "time" with ms, or "offset" with an offset."""

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
        raise UsageError("give one of --raw, --format, --verbose and --json: each is a form of its own")
    write = _writer(raw, form)
    begin = parse_start(start, time.time_ns() // 1_000_000)
    if group is not None and (queue is not None or begin.kind == "offset"):
        raise UsageError("a group shares all queues: --queue and --from offset:N go without --group")
    if sql is not None and tags != "*":
        raise UsageError(
            "--sql can look at the tag itself: \"TAGS = 'A' AND price > 5\", so give one of --tags and --sql"
        )
    wanted = tags if sql is None else Sql(sql)
    if pop:
        if group is None or begin.kind == "time" or trace:
            raise UsageError("--pop needs --group, goes with --from first or last, and not with --trace")
        config = SimpleConsumerConfig(invisible_s=invisible_s, from_begin=begin.kind == "first")
        reader = _Reader(out, verbose=verbose, limit=count, write=write)
        run(lambda stop: _pop(stop, nameserver, topic, group, wanted, config, reader, follow))
        return

    async def command(stop: Stop) -> None:
        reader = _Reader(out, verbose=verbose, limit=count, write=write)
        config = PullConsumerConfig(
            auto_commit=False, consume_from=_consume_from(begin), consume_timestamp_ms=begin.value
        )
        async with open_pull_consumer(nameserver, group or GROUPLESS, config=config, trace=trace) as consumer:
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
    """Raises UsageError saying which forms are taken."""
    text = {"earliest": "first", "latest": "last"}.get(text, text)  # as `aerobee offset reset` calls them
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
    """The same of a message that somebody looks at: of a damaged one the body as it is stored, and `damage` says why."""
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
        # Bodies are bytes of strangers; a terminal must not take orders from them.
        self._clean = shown if sys.stdout.isatty() else None
        self._verbose = verbose
        self._limit = limit
        self.printed = 0
        self.shown = 0  # of the messages that came last
        self.damaged = 0

    @property
    def done(self) -> bool:
        return bool(self._limit) and self.printed >= self._limit

    def left(self, most: int) -> int:
        """How many more may be printed, at most `most`."""
        return min(most, self._limit - self.printed) if self._limit else most

    def end(self) -> None:
        """Say how many there were. Raises MessageDamaged when some could not be printed."""
        if not self._out.as_json:
            self._out.note(plural(self.printed, "message"))
        if self.damaged:
            raise MessageDamaged(f"damaged and passed over: {plural(self.damaged, 'message')}, named above")

    def show(self, messages: Sequence[Received]) -> list[Received]:
        """Print up to the limit; `shown` is how many of these were. A damaged one is named and passed over.

        Returns those that were printed.
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
    """Receive, print, acknowledge. At the limit no more is received than is printed."""

    async def receive(consumer: SimpleConsumer) -> None:
        while not reader.done:
            messages = await consumer.receive(reader.left(POP_COUNT), wait_s=POLL_S)
            await consumer.ack_all(
                reader.show(messages)
            )  # a damaged one comes again, then to the dead letters
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
            places = _places(consumer, messages[reader.shown :])
            news = {queue: offset for queue, offset in places.items() if committed.get(queue) != offset}
            if news:
                await consumer.commit(news)
            committed = places
        if messages:
            continue
        for failure in consumer.failures:
            if isinstance(failure, NoPermission):
                raise failure  # nothing comes until somebody changes that
        if not follow and await _at_end(consumer):
            return


def _places(consumer: PullConsumer, unprinted: Sequence[ReceivedMessage]) -> dict[MessageQueue, int]:
    """Where the group goes on in each queue: behind what was printed, and behind what it does not want."""
    places = {queue: consumer.position(queue) for queue in consumer.assigned}
    for message in reversed(unprinted):
        places[message.queue] = message.queue_offset
    return {queue: offset for queue, offset in places.items() if offset is not None}


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
