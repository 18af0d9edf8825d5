"""A program whose plain handler never returns ends at the first Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from aerobee import Message, SyncProducer
from aerobee.testing import ThreadedCluster

PROGRAM = """
import asyncio, signal, sys, time
from aerobee import ConsumeFrom, ConsumerConfig, PushConsumer

# What a shell starts in the background ignores the signal, and so does all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

def handle(message):
    print("in the handler", flush=True)
    time.sleep(3600)

async def main():
    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST, drain_s=0.1)
    async with PushConsumer(sys.argv[1], "G", subscriptions={"orders": "*"}, handler=handle, config=config):
        await asyncio.Event().wait()

asyncio.run(main())
"""


def test_interrupt_ends_a_program_whose_handler_blocks() -> None:
    with ThreadedCluster() as cluster:
        with SyncProducer(cluster.nameserver_address) as producer:
            producer.send(Message("orders", b"x"))
        program = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-c", PROGRAM, cluster.nameserver_address],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == "in the handler\n"
            program.send_signal(signal.SIGINT)
            try:
                _, errors = program.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                program.send_signal(signal.SIGABRT)  # it says where each of its threads is
                pytest.fail(program.communicate()[1])
        finally:
            program.kill()
            program.wait()
    assert errors.rstrip().endswith("KeyboardInterrupt")
