"""Files of the config directory that are damaged when a broker starts: statistics and caches never keep it from starting, and what
would be lost is taken from the copy."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from aerobee.errors import StoreError
from aerobee.message import Message
from aerobee.testing import LocalCluster

BEGIN_ANEW = ("transactionMetrics", "timermetrics", "consumerFilter.json", "transactionSettled.json")
BAD_VERSION = b'{"dataVersion":{"counter":"x","stateVersion":[],"timestamp":{}}}'
DAMAGE = {
    "empty": b"",
    "zeros": b"\0" * 80,
    "half": b'{"dataVersion":{',
    "a list": b"[1,2]",
    "no version": BAD_VERSION,
    "no table": b'{"filterDataByTopic":[1],"transactionCount":7,"timingCount":7,"settledOffset":"x"}',
}


def config_of(directory: Path) -> Path:
    return next(path for path in directory.rglob("topics.json")).parent


async def send(cluster: LocalCluster) -> None:
    async with cluster.producer("group") as producer:
        await producer.send(Message("orders", b"1"))


@pytest.mark.parametrize("content", DAMAGE.values(), ids=DAMAGE)
async def test_damaged_statistics_never_keep_a_broker_from_starting(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with LocalCluster(directory=tmp_path) as cluster:
        await send(cluster)
        await cluster.stop_broker()
        config = config_of(tmp_path)
        for name in BEGIN_ANEW:
            for path in (config / name, config / f"{name}.bak"):
                path.write_bytes(content)
        with caplog.at_level(logging.WARNING):
            await cluster.start_broker()
        await send(cluster)
    if content != DAMAGE["no table"]:
        assert "transactionMetrics" in caplog.text, "it says so"


async def test_a_damaged_table_of_topics_survives_saves_and_restarts_in_its_copy(tmp_path: Path) -> None:
    async with LocalCluster(directory=tmp_path) as cluster:
        await cluster.create_topic("first")
        await cluster.create_topic("second")
        await cluster.stop_broker()
        topics = config_of(tmp_path) / "topics.json"
        topics.write_bytes(b"\0" * 100)
        await cluster.start_broker()
        await cluster.create_topic("third")  # a save over the damaged file
        await cluster.stop_broker()
        assert b'"first"' in topics.read_bytes()
        topics.write_bytes(b"\0" * 100)  # the same again
        await cluster.start_broker()
        assert cluster.broker().topics.get("first") is not None
        await cluster.stop_broker()
        for path in (topics, topics.with_name("topics.json.bak")):
            path.write_bytes(b"{")
        with pytest.raises(StoreError, match=r"topics\.json\.bak"):
            await cluster.start_broker()
