"""`aerobee send`: one message from an argument, or one message per line from a file or standard input.

Up to --in-flight sends are concurrent, and each waits for its reply. Lines enter a queue in the order of the file as
long as no send fails; --message-group or --queue puts all of them into one queue. A line whose send fails with a retriable
error is retried for --retry-for: such a line may be stored twice, but is not lost. RocketMQ's brokers differ in two
ways: their send threads overtake each other, so that only --in-flight 1 keeps the order there, and they refuse empty
messages (--skip-empty).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from aerobee.client import Producer, ProducerConfig, SendResult, SendStatus
from aerobee.client.producer.send_tries import may_be_stored
from aerobee.errors import AerobeeError, UsageError
from aerobee.host_port import NAMESERVER_DEFAULT
from aerobee.message import AckLevel, Message, MessageQueue
from aerobee.ops.options import send_options as options
from aerobee.ops.options.clients import open_admin, open_producer
from aerobee.ops.options.options import AsJson, NameServers, TopicArgument
from aerobee.ops.terminal.ack_level import SENTENCES, UNKNOWN, ack_sentence_of
from aerobee.ops.terminal.failure import ExitCode, explain
from aerobee.ops.terminal.lines import STDIN, open_lines, read_all, read_lines
from aerobee.ops.terminal.output import Output, body_text, host_text
from aerobee.ops.terminal.progress import Progress, size_of
from aerobee.ops.terminal.run import Stop, run
from aerobee.ops.terminal.times import is_span, moment_ms, moment_text, span_ms, until_text
from aerobee.property_names import DEDUP_KEY
from aerobee.words import plural

log = logging.getLogger(__name__)

BODY_BYTES_MAX = 4 * 1024 * 1024
RETRY_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The properties and the destination that all messages of one call share."""

    topic: str
    tag: str | None
    keys: tuple[str, ...]
    properties: dict[str, str]
    queue: str | None
    message_group: str | None
    delay_level: int
    deliver_at: float | None = None
    deliver_after: float | None = None
    priority: int = -1
    ack: AckLevel | None = None

    @property
    def waits(self) -> bool:
        """Whether the messages are delayed."""
        return bool(self.delay_level or self.deliver_after) or (self.deliver_at or 0) > time.time()

    def due_ms(self, levels: list[int], now_ms: int) -> int:
        """The delivery time of a message sent now, in ms since the epoch. `levels`: the broker's delays in ms."""
        if self.delay_level:
            return now_ms + levels[self.delay_level - 1]
        if self.deliver_after is not None:
            return now_ms + round(self.deliver_after * 1000)
        return now_ms if self.deliver_at is None else round(self.deliver_at * 1000)

    def message(self, body: bytes) -> Message:
        return Message(
            self.topic,
            body,
            tag=self.tag,
            keys=self.keys,
            properties=self.properties,
            delay_level=self.delay_level,
            deliver_at=self.deliver_at,
            deliver_after=self.deliver_after,
            priority=self.priority,
            ack=self.ack,
        )


@dataclass(slots=True)
class Tally:
    """Counts of one call so far. Line numbers start at 1."""

    sent: int = 0
    body_bytes: int = 0
    repeated: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    queues: Counter[str] = field(default_factory=Counter)
    brokers: set[str] = field(default_factory=set)
    read: int = 0  # lines
    unsure_line: int = 0  # the first line whose send was in flight at the interruption
    failed_line: int = 0
    failure: BaseException | None = None

    def count(self, result: SendResult, size: int) -> None:
        self.sent += 1
        self.body_bytes += size
        self.statuses[result.status.value] += 1
        self.queues[f"{result.queue.broker_name}/{result.queue.queue_id}"] += 1
        self.brokers.add(result.queue.broker_name)

    def interrupt(self, line: int) -> None:
        self.unsure_line = min(line, self.unsure_line or line)

    @property
    def next_line(self) -> int:
        """The line to continue with after an interruption: all lines before it are stored."""
        return self.unsure_line or self.read + 1

    def fail(self, line: int, error: BaseException) -> None:
        if self.failure is None or line < self.failed_line:
            self.failed_line, self.failure = line, error


def register(app: typer.Typer) -> None:
    app.command("send")(send)


def send(
    topic: TopicArgument,
    text: options.Text = None,
    file: options.File = None,
    whole: options.Whole = False,
    tag: options.Tag = None,
    keys: options.Keys = None,
    properties: options.Properties = None,
    queue: options.Queue = None,
    message_group: options.MessageGroup = None,
    delay_level: options.DelayLevel = 0,
    deliver_after: options.DeliverAfter = None,
    deliver_at: options.DeliverAt = None,
    priority: options.Priority = None,
    ack: options.Ack = None,
    dedup_key: options.DedupKey = None,
    reply_within: options.Reply = None,
    trace: options.Trace = False,
    group: options.Group = "aerobee-send",
    in_flight: options.InFlight = 64,
    skip_empty: options.SkipEmpty = False,
    from_line: options.FromLine = 1,
    retry_for: options.RetryFor = 60.0,
    timeout: options.Timeout = 3.0,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Send messages: TEXT, or each line of --file or of standard input."""
    out = Output(as_json)
    if file == Path("-"):
        file = None
    if text is not None and (file is not None or whole):
        raise UsageError("TEXT excludes --file and --whole")
    if text is None and (reply_within is not None or dedup_key is not None):
        raise UsageError("--reply-within and --dedup-key need TEXT: they apply to one message")
    options.check_tag(tag)
    given = parse_properties(properties or []) | ({} if dedup_key is None else {DEDUP_KEY: dedup_key})
    shape = Shape(
        topic=topic,
        tag=tag,
        keys=tuple(keys or ()),
        properties=given,
        queue=queue,
        message_group=message_group,
        delay_level=delay_level,
        deliver_at=None if deliver_at is None else moment_to_come(deliver_at) / 1000,
        deliver_after=deliver_after,
        priority=-1 if priority is None else priority,
        ack=ack,
    )
    shape.message(b"")  # check names and values before any connection is opened
    config = ProducerConfig(
        send_timeout_s=timeout,
        in_flight_max=in_flight,
        delay_level_max=max(delay_level, ProducerConfig().delay_level_max),  # delays() asks the brokers
    )

    async def command(stop: Stop) -> int:
        levels = await delays(nameserver, delay_level) if delay_level else []
        async with open_producer(nameserver, group, config=config, trace=trace) as producer:
            if text is not None and reply_within is not None:
                return await _ask(producer, shape, os.fsencode(text), reply_within, out)
            if text is not None or whole:
                body = os.fsencode(text) if text is not None else await _whole_body(file)
                return await _send_one(producer, nameserver, shape, body, levels, out)
            return await _send_lines(
                producer,
                nameserver,
                shape,
                file,
                stop,
                out,
                in_flight=in_flight,
                first=from_line,
                skip_empty=skip_empty,
                retry_for=retry_for,
            )

    raise typer.Exit(run(command))


def parse_properties(texts: list[str]) -> dict[str, str]:
    """`name=value` texts. Raises UsageError."""
    properties: dict[str, str] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name or not value:
            raise UsageError(f"--property {text!r}: write --property NAME=VALUE, neither of them empty")
        properties[name] = value
    return properties


def moment_to_come(text: str) -> int:
    """The time of --deliver-at in ms since the epoch. Raises UsageError, also for a span, which --deliver-after takes."""
    if is_span(text) and len(text) < 12:
        raise UsageError(f"--deliver-at {text!r} is a duration, not a time: use --deliver-after {text}")
    return moment_ms(text, 0)


async def delays(nameserver: str, level: int) -> list[int]:
    """The delays in ms of the brokers' levels (messageDelayLevel). Raises UsageError for an unknown level."""
    async with open_admin(nameserver) as admin:
        masters = [info.address for info in await admin.brokers() if info.broker_id == 0]
        text = (await admin.broker_config(masters[0])).get("messageDelayLevel", "") if masters else ""
    levels = [span_ms(each) for each in text.split()]
    if masters and level > len(levels):
        raise UsageError(f"--delay-level {level}: the brokers have {plural(len(levels), 'level')}, {text}")
    return levels or [0] * level


def find_queue(queues: tuple[MessageQueue, ...], text: str, topic: str) -> MessageQueue:
    """The queue that `broker/id`, or `id` when one broker has it, names. Raises UsageError listing what exists."""
    broker, _, number = text.rpartition("/")
    found = [
        queue
        for queue in queues
        if number.isdecimal() and queue.queue_id == int(number) and broker in ("", queue.broker_name)
    ]
    if len(found) == 1:
        return found[0]
    exist = ", ".join(f"{queue.broker_name}/{queue.queue_id}" for queue in sorted(queues)[:16])
    problem = "is on several brokers" if found else "does not exist"
    raise UsageError(f"queue {text!r} of topic {topic} {problem}; write BROKER/ID, one of: {exist}")


async def ack_of(nameserver: str, brokers: set[str]) -> str:
    """The durability that an acknowledgement of these brokers states. Never raises, because the messages are sent already."""
    sentences: dict[str, list[str]] = {}
    try:
        async with open_admin(nameserver) as admin:
            for info in await admin.brokers():
                if info.broker_name in brokers and info.broker_id == 0:
                    sentence = ack_sentence_of(await admin.broker_config(info.address))
                    sentences.setdefault(sentence, []).append(info.broker_name)
    except AerobeeError:
        return UNKNOWN
    if len(sentences) == 1:
        return next(iter(sentences))
    return "; ".join(f"{', '.join(names)}: {sentence}" for sentence, names in sentences.items()) or UNKNOWN


async def _whole_body(file: Path | None) -> bytes:
    if file is None:
        return await read_all(STDIN, BODY_BYTES_MAX)
    descriptor = open_lines(file)
    try:
        return await read_all(descriptor, BODY_BYTES_MAX)
    finally:
        os.close(descriptor)


async def _destination(producer: Producer, shape: Shape) -> dict[str, Any]:
    if shape.queue is not None:
        return {"queue": find_queue(await producer.queues(shape.topic), shape.queue, shape.topic)}
    if shape.message_group is not None:
        return {"message_group": shape.message_group}
    return {}


def _sent_text(shape: Shape, result: SendResult, position: str, ack: str, due_ms: int) -> str:
    if result.is_duplicate:
        return f"was stored before: {shape.topic}, queue {position}, as {result.transaction_id} (DEDUP_KEY)"
    if not shape.waits:
        return f"sent {result.message_id} to {shape.topic}, queue {position} ({ack})"
    # The queue and offset in the reply are those of the broker's delay topic, so they are not shown.
    handle = f"\nrecall handle {result.recall_handle}" if result.recall_handle else ""
    due = f"{moment_text(due_ms)}, {until_text(due_ms - time.time_ns() // 1_000_000)}"
    return f"stored {result.message_id} for {shape.topic}, delivery at {due} ({ack}){handle}"


async def _send_one(
    producer: Producer, nameserver: str, shape: Shape, body: bytes, levels: list[int], out: Output
) -> int:
    result = await producer.send(shape.message(body), **await _destination(producer, shape))
    log.debug("%s: %s", shape.topic, result)
    due_ms = shape.due_ms(levels, time.time_ns() // 1_000_000)
    ack = SENTENCES.get(result.ack) or await ack_of(nameserver, {result.queue.broker_name})
    position = f"{result.queue.broker_name}/{result.queue.queue_id} at offset {result.queue_offset}"
    out.document(
        {
            "status": result.status.value,
            "message_id": result.message_id,
            "offset_message_id": result.offset_message_id,
            "topic": shape.topic,
            "broker": result.queue.broker_name,
            "queue_id": result.queue.queue_id,
            "queue_offset": result.queue_offset,
            "duplicate": result.is_duplicate,
            "stored_as": result.transaction_id if result.is_duplicate else result.message_id,
            "recall_handle": result.recall_handle,
            "due_ms": due_ms if shape.waits else None,
            "ack": ack,
        },
        _sent_text(shape, result, position, ack, due_ms),
    )
    if result.status is not SendStatus.SEND_OK:
        out.note(
            f"{result.status.value}: stored, but less durably than the broker's settings require",
            style="yellow",
        )
    return int(ExitCode.DONE)


async def _ask(producer: Producer, shape: Shape, body: bytes, within_s: float, out: Output) -> int:
    reply = await producer.request(
        shape.message(body), timeout_s=within_s, **await _destination(producer, shape)
    )
    text, encoding = body_text(reply.body)
    out.document(
        {"reply": text, "encoding": encoding, "tag": reply.tag, "from": host_text(reply.born_host)}, text
    )
    return int(ExitCode.DONE)


async def _send_lines(
    producer: Producer,
    nameserver: str,
    shape: Shape,
    file: Path | None,
    stop: Stop,
    out: Output,
    *,
    in_flight: int,
    first: int,
    skip_empty: bool,
    retry_for: float,
) -> int:
    if file is None and os.isatty(STDIN):
        out.note(f"type one message to {shape.topic} per line; Ctrl-D ends")
    descriptor = STDIN if file is None else open_lines(file)
    tally = Tally()
    began = time.monotonic()
    progress = Progress(sys.stderr, bytes_total=size_of(descriptor), began=began)
    try:
        destination = await _destination(producer, shape)
        lines = read_lines(descriptor)
        await stop.or_done(
            _pump(
                producer,
                shape,
                destination,
                lines,
                tally,
                out,
                in_flight,
                first,
                skip_empty,
                retry_for,
                progress,
            )
        )
    finally:
        progress.end()
        if file is not None:
            os.close(descriptor)
    seconds = time.monotonic() - began
    ack = await ack_of(nameserver, tally.brokers) if tally.sent else ""
    return _summary(
        shape, tally, seconds, ack, stopped=bool(stop), typed=file is None and os.isatty(STDIN), out=out
    )


async def _pump(
    producer: Producer,
    shape: Shape,
    destination: dict[str, Any],
    lines: AsyncIterator[bytes],
    tally: Tally,
    out: Output,
    in_flight: int,
    first: int,
    skip_empty: bool,
    retry_for: float,
    progress: Progress,
) -> None:
    """Keep up to `in_flight` sends in flight. Ends at the first line that failed permanently."""
    under_way: set[asyncio.Task[None]] = set()
    warned = False
    number = 0

    def warn(error: BaseException) -> None:
        nonlocal warned
        if not warned:
            warned = True
            progress.end()
            out.note(f"retrying for {retry_for:.0f} s: {explain(error).sentence}", style="yellow")

    async def one(line_number: int, message: Message) -> None:
        try:
            result = await _send_until(producer, message, destination, tally, retry_for, warn)
        except asyncio.CancelledError:
            tally.interrupt(line_number)
            raise
        except AerobeeError as error:
            tally.fail(line_number, error)
        else:
            tally.count(result, len(message.body))
            log.debug("line %d: %s", line_number, result)

    try:
        async for line in lines:
            number += 1
            progress.read(len(line) + 1)
            if number < first or (skip_empty and not line):
                continue
            if tally.failure is not None:
                break
            tally.read = number
            task = asyncio.create_task(one(number, shape.message(line)), name=f"send-line-{number}")
            under_way.add(task)
            task.add_done_callback(under_way.discard)
            # The first send fetches the route alone, so that the others enter their queues in the order of the file.
            if tally.sent == 0 or len(under_way) >= in_flight:
                await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
            progress.show(tally.sent, time.monotonic())
        while under_way:
            await asyncio.wait(under_way)
    finally:
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)


async def _send_until(
    producer: Producer,
    message: Message,
    destination: dict[str, Any],
    tally: Tally,
    retry_for: float,
    warn: Callable[[BaseException], None],
) -> SendResult:
    """Send, and retry while the error is retriable. The first line is not retried: a wrong address is more likely
    than a cluster that is still starting."""
    deadline = time.monotonic() + retry_for
    while True:
        try:
            return await producer.send(message, **destination)
        except AerobeeError as error:
            if tally.sent == 0 or not error.retriable or time.monotonic() >= deadline:
                raise
            warn(error)
            tally.repeated += 1
        await asyncio.sleep(RETRY_PAUSE_S)


def _summary(
    shape: Shape, tally: Tally, seconds: float, ack: str, *, stopped: bool, typed: bool, out: Output
) -> int:
    failure = explain(tally.failure) if tally.failure is not None else None
    document: dict[str, Any] = {
        "topic": shape.topic,
        "sent": tally.sent,
        "body_bytes": tally.body_bytes,
        "seconds": round(seconds, 3),
        "statuses": dict(tally.statuses),
        "queues": dict(sorted(tally.queues.items())),
        "tries_repeated": tally.repeated,
        "ack": ack,
    }
    sentence = f"sent {plural(tally.sent, 'message')} to {shape.topic} in {seconds:.2f} s, {plural(len(tally.queues), 'queue')}"
    if tally.sent:
        sentence += f" ({ack})"
    if failure is not None:
        document["failed_line"] = tally.failed_line
        document |= failure.as_document()
    elif stopped:
        document["next_line"] = tally.next_line
    out.document(document, sentence)
    less_safe = {name: count for name, count in tally.statuses.items() if name != SendStatus.SEND_OK.value}
    for name, count in less_safe.items():
        out.note(
            f"{count} with {name}: stored, but less durably than the broker's settings require",
            style="yellow",
        )
    if tally.repeated:
        out.note(f"retried {plural(tally.repeated, 'send')}: some of these messages may be stored twice")
    if failure is not None:
        with contextlib.suppress(BrokenPipeError):
            out.notes.print("[bold red]error:[/] ", end="")
            is_open = tally.failure is not None and may_be_stored(tally.failure)
            known = "is not confirmed and may be stored" if is_open else "was not stored"
            out.notes.print(f"line {tally.failed_line} {known}: {failure.sentence}", markup=False)
            if failure.advice:
                out.note(f"hint:  {failure.advice}")
            if not typed:
                out.note(
                    f"hint:  continue with --from-line {tally.failed_line} (lines after it may be stored already)"
                )
        return int(failure.exit_code)
    if stopped:
        with contextlib.suppress(BrokenPipeError):
            if typed:
                out.note("interrupted: lines that were typed but not sent are lost")
                return int(ExitCode.INTERRUPTED)
            out.note(
                f"interrupted: continue with --from-line {tally.next_line} (lines after it may be stored already)"
            )
        return int(ExitCode.INTERRUPTED)
    return int(ExitCode.DONE)
