"""`opentelemetry-instrument` runs a producer and a consumer that know nothing of OpenTelemetry, and exports their spans."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from aerobee.testing import LocalCluster

pytest.importorskip("opentelemetry.distro", reason="needs opentelemetry-distro")

WITHIN_S = 60.0
INSTRUMENT = Path(sys.executable).parent / "opentelemetry-instrument"
PRODUCER = """
import asyncio, sys
from aerobee import Message, Producer

async def main():
    async with Producer(sys.argv[1], "shop") as producer:
        await producer.send(Message("orders", b"bell"))

asyncio.run(main())
"""
CONSUMER = """
import asyncio, sys
from aerobee import ConsumeFrom, ConsumerConfig, PushConsumer

async def main():
    done = asyncio.Event()

    async def handle(message):
        done.set()

    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST)
    async with PushConsumer(sys.argv[1], "billing", {"orders": "*"}, handle, config=config):
        await done.wait()

asyncio.run(main())
"""


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster() as cluster:
        await cluster.create_topic("orders", 1)
        yield cluster


async def spans_of(program: str, nameserver: str, tmp_path: Path) -> list[dict[str, Any]]:
    """The spans that the console exporter writes while a program runs."""
    environment = {
        **os.environ,
        "OTEL_TRACES_EXPORTER": "console",
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_LOGS_EXPORTER": "none",
        "OTEL_SERVICE_NAME": "shop",
    }
    path = tmp_path / "program.py"
    path.write_text(program, encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        INSTRUMENT, sys.executable, path, nameserver, env=environment, stdout=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(WITHIN_S):
            text, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
    assert process.returncode == 0
    return list(documents(text.decode()))


def documents(text: str) -> Any:
    """JSON objects one after the other."""
    decoder, text = json.JSONDecoder(), text.strip()
    while text:
        found, end = decoder.raw_decode(text)
        yield found
        text = text[end:].lstrip()


async def test_unmodified_programs_export_one_trace(cluster: LocalCluster, tmp_path: Path) -> None:
    (sent,) = await spans_of(PRODUCER, cluster.nameserver_address, tmp_path)
    (processed,) = await spans_of(CONSUMER, cluster.nameserver_address, tmp_path)
    assert (sent["name"], processed["name"]) == ("send orders", "process orders")
    assert (sent["kind"], processed["kind"]) == ("SpanKind.PRODUCER", "SpanKind.CONSUMER")
    assert processed["parent_id"] == sent["context"]["span_id"]
    assert processed["context"]["trace_id"] == sent["context"]["trace_id"]
    assert processed["attributes"]["messaging.system"] == "rocketmq"
    assert processed["attributes"]["messaging.message.id"] == sent["attributes"]["messaging.message.id"]
    assert sent["resource"]["attributes"]["service.name"] == "shop"
