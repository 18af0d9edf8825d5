"""CPU that RocketMQ's official Python gRPC client spends on a message. Runs in the environment of scripts/setup-bench.

    grpc_client.py send ENDPOINT TOPIC COUNT       64 sends under way (send_async)
    grpc_client.py receive ENDPOINT TOPIC COUNT    PushConsumer with a handler that does nothing

Prints the microseconds of this process's CPU a message. clients.py calls it.
"""

from __future__ import annotations

import sys
import threading
import time

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
)

IN_FLIGHT = 64
BODY = b"x" * 128
WARM = 500


def send(configuration: ClientConfiguration, topic: str, count: int) -> float:
    """Send with 64 under way; return CPU microseconds a message."""
    producer = Producer(configuration, (topic,))
    producer.startup()
    free = threading.Semaphore(IN_FLIGHT)
    failed: list[BaseException] = []

    def done(future: object) -> None:
        error = future.exception()  # type: ignore[attr-defined]
        if error is not None:
            failed.append(error)
        free.release()

    def send_many(number: int) -> None:
        for _ in range(number):
            message = Message()
            message.topic = topic
            message.body = BODY
            free.acquire()
            producer.send_async(message).add_done_callback(done)
        for _ in range(IN_FLIGHT):
            free.acquire()
        free.release(IN_FLIGHT)

    send_many(WARM)
    began = time.process_time()
    send_many(count)
    spent = time.process_time() - began
    producer.shutdown()
    if failed:
        raise failed[0]
    return spent / count * 1e6


class Counter(MessageListener):
    """Counts, and tells when all are there."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.done = threading.Event()
        self._lock = threading.Lock()

    def consume(self, message: Message) -> ConsumeResult:
        with self._lock:
            self.left -= 1
            if self.left <= 0:
                self.done.set()
        return ConsumeResult.SUCCESS


def receive(configuration: ClientConfiguration, topic: str, count: int) -> float:
    """Consume what is stored; return CPU microseconds a message."""
    counter = Counter(count)
    consumer = PushConsumer(configuration, "grpc-group", counter, {topic: FilterExpression()})
    began = time.process_time()
    consumer.startup()
    if not counter.done.wait(300):
        raise TimeoutError(f"{counter.left} of {count} messages did not come within 300 s")
    spent = time.process_time() - began
    consumer.shutdown()
    return spent / count * 1e6


def main() -> None:
    mode, endpoint, topic, count = sys.argv[1:5]
    configuration = ClientConfiguration(endpoint, Credentials(), "")
    work = {"send": send, "receive": receive}[mode]
    print(f"{work(configuration, topic, int(count)):.3f}")


if __name__ == "__main__":
    main()
