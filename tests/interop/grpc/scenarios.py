"""Every kind of message of RocketMQ's gRPC protocol, sent and received by its Python client through a proxy.

Runs in the environment that scripts/setup-interop makes, not in ours. The proxy gives each of its calls to a broker two seconds and no
setting changes that, so on a busy machine calls fail at any broker; and this client repeats nothing that failed. What failed is
repeated here, a client that did not start as a new one; what a repeated send doubled is counted once. Arguments as java-grpc/GrpcScenarios.java; each
scenario prints one line {"scenario": name, "outcome": text}, equal at every broker that does what RocketMQ's does.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import zlib
from collections.abc import Callable
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    LitePushConsumer,
    LiteSimpleConsumer,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType

ENDPOINT, PREFIX, *WANTED = sys.argv[1:]
PATIENCE_S = 240  # what a receive took whose answer came too late is invisible for a minute
INVISIBLE_S = 60
ALL = FilterExpression()
SLOW = ("deadletter", "transaction", "recall")  # begun first, or all would wait for them at the end


def configuration() -> ClientConfiguration:
    return ClientConfiguration(ENDPOINT, Credentials(), request_timeout=10)


def patiently(call: Callable[[], object]) -> Any:
    """Make a call until it works: the proxy gives up soon where the machine is busy."""
    for attempt in range(20):
        try:
            return call()
        except Exception:
            if attempt == 19:
                raise
            time.sleep(1)
    raise AssertionError("not reached")


def message(topic: str, body: str | bytes, **fields: Any) -> Message:
    made = Message()
    made.topic = topic
    made.body = body if isinstance(body, bytes) else body.encode()
    for name, value in fields.items():
        if name == "properties":
            for key, text in value.items():
                made.add_property(key, text)
        else:
            setattr(made, name, value)
    return made


class Started:
    """A client while the block runs, recreated until it starts."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self.client: Any = None

    def __enter__(self) -> Any:
        self.client = patiently(self._start)
        if isinstance(self.client, Producer):
            send = self.client.send
            self.client.send_once = send
            self.client.send = lambda sent: patiently(lambda: send(sent))
        return self.client

    def _start(self) -> Any:
        client = self._make()
        client.startup()
        return client

    def __exit__(self, *_: object) -> None:
        self.client.shutdown()


def producing(topic: str, checker: TransactionChecker | None = None) -> Started:
    return Started(lambda: Producer(configuration(), [topic], checker))


def simple(topic: str, expression: FilterExpression = ALL) -> Started:
    return Started(
        lambda: SimpleConsumer(configuration(), f"G{topic}", {topic: expression}, await_duration=3)
    )


def receive(consumer: SimpleConsumer, count: int, describe: Callable[[Message], str]) -> list[str]:
    found: list[str] = []
    end = time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < end:
        for each in patiently(lambda: consumer.receive(16, INVISIBLE_S)) or ():
            told = describe(each)
            found += [] if told in found else [told]
            patiently(lambda each=each: consumer.ack(each))
    return found


def text(received: Message) -> str:
    return received.body.decode()


class Seen(MessageListener):
    """What a push consumer was given; those that `fails` says fail."""

    def __init__(self, fails: Callable[[Message], bool] = lambda received: False) -> None:
        self.items: list[str] = []
        self.groups: dict[str, list[str]] = {}
        self._fails = fails
        self._lock = threading.Lock()

    def consume(self, received: Message) -> ConsumeResult:
        with self._lock:
            item = f"{text(received)}|{received.delivery_attempt}"
            if item not in self.items:
                self.items.append(item)
                self.groups.setdefault(received.message_group or "-", []).append(text(received))
        return ConsumeResult.FAILURE if self._fails(received) else ConsumeResult.SUCCESS

    def sorted(self, count: int) -> str:
        end = time.monotonic() + PATIENCE_S
        while len(self.items) < count and time.monotonic() < end:
            time.sleep(0.1)
        time.sleep(1.5)
        return str(sorted(self.items))


def pushing(topic: str, seen: Seen) -> Started:
    return Started(lambda: PushConsumer(configuration(), f"G{topic}", seen, {topic: ALL}))


# --- scenarios


def run_simple(topic: str) -> str:
    with producing(topic) as producer, simple(topic) as consumer:
        for number in range(6):
            producer.send(
                message(
                    topic,
                    f"m{number}",
                    tag=f"tag{number}",
                    keys=f"key{number}",
                    properties={"p": f"v{number}"},
                )
            )
        found = receive(
            consumer,
            6,
            lambda each: (
                f"{text(each)}|{each.tag}|{','.join(each.keys)}|{each.properties}|{each.delivery_attempt}"
            ),
        )
        return f"{sorted(found)} then {len(patiently(lambda: consumer.receive(16, 15)) or ())}"


def run_push(topic: str) -> str:
    seen = Seen()
    with producing(topic) as producer, pushing(topic, seen):
        for number in range(12):
            producer.send(message(topic, f"m{number}"))
        return seen.sorted(12)


def filtered(topic: str, expression: FilterExpression, count: int) -> str:
    with producing(topic) as producer, simple(topic, expression) as consumer:
        for number in range(8):
            properties = {"number": str(number), "colour": "red" if number % 2 else "blue"}
            producer.send(message(topic, f"m{number}", tag="abcd"[number % 4], properties=properties))
        return f"{sorted(receive(consumer, count, text))} then {len(patiently(lambda: consumer.receive(16, 15)) or ())}"


def run_tags(topic: str) -> str:
    return filtered(topic, FilterExpression("a || c"), 4)


def run_sql(topic: str) -> str:
    return filtered(topic, FilterExpression("number >= 3 AND colour = 'red'", FilterType.SQL), 3)


def run_fifo(topic: str) -> str:
    seen = Seen()
    with producing(topic) as producer, pushing(topic, seen):
        for number in range(18):
            producer.send(message(topic, f"m{number}", message_group=f"group{number % 3}"))
        seen.sorted(18)
        return str(dict(sorted(seen.groups.items())))


def run_retry(topic: str) -> str:
    seen = Seen(lambda each: text(each) == "m1" and each.delivery_attempt == 1)
    with producing(topic) as producer, pushing(topic, seen):
        for number in range(3):
            producer.send(message(topic, f"m{number}"))
        return seen.sorted(4)


def run_delay(topic: str) -> str:
    with producing(topic) as producer, simple(topic) as consumer:
        due = time.time() + 4
        producer.send(message(topic, "later", delivery_timestamp=int(due)))
        return str(receive(consumer, 1, lambda each: f"{text(each)}|{time.time() >= due - 1.5}"))


def run_recall(topic: str) -> str:
    with producing(topic) as producer, simple(topic) as consumer:
        now = int(time.time())
        receipt = producer.send(message(topic, "never", delivery_timestamp=now + 12))
        producer.send(message(topic, "after", delivery_timestamp=now + 15))
        recalled = producer.recall_message(topic, receipt.recall_handle)
        return f"{str(recalled) == str(receipt.message_id)} {receive(consumer, 1, text)}"


class Checker(TransactionChecker):
    def __init__(self) -> None:
        self.checked: set[str] = set()

    def check(self, half: Message) -> TransactionResolution:
        self.checked.add(text(half))
        return TransactionResolution.ROLLBACK if text(half) == "rollback" else TransactionResolution.COMMIT


def half(producer: Any, topic: str, body: str) -> Any:
    """A transaction with its message. One whose send failed takes no second message."""
    transaction = producer.begin_transaction()
    producer.send_once(message(topic, body), transaction)
    return transaction


def run_transaction(topic: str) -> str:
    """An undecided one, then one of each decision.

    In this order: RocketMQ's check of half messages burns a core for up to a minute while one that is undecided lies behind
    decided ones (TransactionalMessageServiceImpl.check goes round without a pause then).
    """
    checker = Checker()
    with producing(topic, checker) as producer, simple(topic) as consumer:
        patiently(lambda: half(producer, topic, "checked"))
        found = receive(consumer, 1, text)
        for body in ("rollback", "commit"):
            transaction = patiently(lambda body=body: half(producer, topic, body))
            patiently(getattr(transaction, body))
        found += receive(consumer, 1, text)
        return f"{found} checked {'checked' in checker.checked}"


def run_big(topic: str) -> str:
    body = bytes(range(256)) * 12_000
    with producing(topic) as producer, simple(topic) as consumer:
        producer.send(message(topic, body))
        return str(
            receive(consumer, 1, lambda each: f"{len(each.body)}|{zlib.crc32(each.body) == zlib.crc32(body)}")
        )


def run_priority(topic: str) -> str:
    with producing(topic) as producer:
        for priority in (0, 2, 1, 3):
            producer.send(message(topic, f"p{priority}", priority=priority))
    with simple(topic) as consumer:
        found: list[str] = []
        end = time.monotonic() + PATIENCE_S
        while len(found) < 4 and time.monotonic() < end:
            for each in patiently(lambda: consumer.receive(1, INVISIBLE_S)) or ():
                told = f"{text(each)}|{each.priority}"
                found += [] if told in found else [told]
                patiently(lambda each=each: consumer.ack(each))
        return str(found)


def run_invisible(topic: str) -> str:
    with producing(topic) as producer, simple(topic) as consumer:
        producer.send(message(topic, "again"))
        found: list[str] = []
        end = time.monotonic() + PATIENCE_S
        while len(found) < 2 and time.monotonic() < end:
            for each in patiently(lambda: consumer.receive(4, INVISIBLE_S)) or ():
                told = f"{text(each)}|{each.delivery_attempt}"
                if told not in found:
                    found.append(told)
                    if len(found) == 1:
                        consumer.change_invisible_duration(each, 10)
                    else:
                        consumer.ack(each)
        return str(found)


def run_wrongtype(topic: str) -> str:
    """What a message for the wrong kind of topic ends with."""
    with producing(topic) as producer:
        try:
            producer.send_once(message(topic, "x", message_group="a group in a topic of normal messages"))
        except Exception as error:
            return type(error).__name__
    return "sent"


def run_deadletter(topic: str) -> str:
    seen = Seen(lambda each: True)
    with producing(topic) as producer, pushing(topic, seen):
        producer.send(message(topic, "bad", keys="k"))
        attempts = seen.sorted(2)
        time.sleep(30)  # the try that goes to the dead letters instead
        return f"{attempts} then {seen.sorted(2)}"


def run_twopushes(topic: str) -> str:
    seen = Seen()
    with producing(topic) as producer, pushing(topic, seen), pushing(topic, seen):
        for number in range(40):
            producer.send(message(topic, f"m{number:02}"))
        return seen.sorted(40)


WARM = "warm"


class LiteSeen(MessageListener):
    """What a consumer was given of each lite topic."""

    def __init__(self) -> None:
        self.found: dict[str, list[str]] = {}
        self._lock = threading.Lock()

    def consume(self, received: Message) -> ConsumeResult:
        self.note(received)
        return ConsumeResult.SUCCESS

    def note(self, received: Message) -> None:
        with self._lock:
            bodies = self.found.setdefault(received.lite_topic, [])
            if text(received) not in bodies:
                bodies.append(text(received))


def lite_outcome(topic: str, consumer: Any, seen: LiteSeen, look: Callable[[], object]) -> str:
    """Two of three lite topics. This client has no offset option: at RocketMQ a group begins at the end of a lite topic, with its first
    pop. So each lite topic gets messages until one of them arrives.
    """
    with producing(topic) as producer:
        for name in ("a", "b", "gone"):
            patiently(lambda name=name: consumer.subscribe_lite(name))
        patiently(lambda: consumer.unsubscribe_lite("gone"))
        end = time.monotonic() + PATIENCE_S
        for name in ("a", "b"):
            while name not in seen.found and time.monotonic() < end:
                producer.send(message(topic, WARM, lite_topic=name))
                look()
        for number in range(12):
            producer.send(message(topic, f"m{number}", lite_topic=("a", "b", "gone")[number % 3]))
        while sum(map(len, seen.found.values())) < 10 and time.monotonic() < end:
            look()
    return str({name: sorted(set(bodies) - {WARM}) for name, bodies in sorted(seen.found.items())})


def run_lite(topic: str) -> str:
    seen = LiteSeen()
    with Started(lambda: LitePushConsumer(configuration(), f"G{topic}", topic, seen)) as consumer:
        return lite_outcome(topic, consumer, seen, lambda: time.sleep(1))


def run_litesimple(topic: str) -> str:
    seen = LiteSeen()

    def look() -> None:
        for each in patiently(lambda: consumer.receive(16, INVISIBLE_S)) or ():
            seen.note(each)
            patiently(lambda each=each: consumer.ack(each))

    with Started(
        lambda: LiteSimpleConsumer(topic, configuration(), f"G{topic}", await_duration=3)
    ) as consumer:
        return lite_outcome(topic, consumer, seen, look)


def main() -> None:
    lines = threading.Lock()
    slots = threading.Semaphore(4)

    def run(name: str, scenario: Callable[[str], str]) -> None:
        try:
            with slots:
                outcome = scenario(f"{PREFIX}_{name}")
        except Exception as error:  # the outcome of this scenario, whatever it is
            outcome = f"failed: {error!r}"
        with lines:
            print(json.dumps({"scenario": name, "outcome": outcome}), flush=True)

    found = {name.removeprefix("run_"): each for name, each in globals().items() if name.startswith("run_")}
    found = dict(sorted(found.items(), key=lambda item: item[0] not in SLOW))
    threads = [
        threading.Thread(target=run, args=(name, each), daemon=True)
        for name, each in found.items()
        if not WANTED or name in WANTED
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    sys.stdout.flush()
    os._exit(0)  # threads of the client may be left


if __name__ == "__main__":
    main()
