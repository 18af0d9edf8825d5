"""Queries into Parquet for the tests of this directory: until all is read, or running meanwhile."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from tests.spark.restart_rounds import numbers_in_parquet
from tests.waiting import wait_for

names = (f"topic-{number}" for number in count())


def source_options(nameservers: str, topic: str, **more: Any) -> dict[str, str]:
    return {"nameservers": nameservers, "subscribe": topic} | {
        name: str(value) for name, value in more.items()
    }


def values(frame: Any) -> list[int]:
    return sorted(int(bytes(row.value)) for row in frame.select("value").collect())


class Stream:
    """A query from a topic into Parquet, with a separate checkpoint."""

    def __init__(self, spark: Any, directory: Path, source: dict[str, str]) -> None:
        self.spark, self.directory, self.source = spark, directory, source

    def _start(self, **trigger: Any) -> Any:
        stream = self.spark.readStream.format("rocketmq").options(**self.source).load()
        writer = stream.writeStream.format("parquet").option("path", str(self.directory / "out"))
        return (
            writer.option("checkpointLocation", str(self.directory / "checkpoint")).trigger(**trigger).start()
        )

    def run(self) -> list[dict[str, Any]]:
        """Run until all that is there is read; returns the progress of each batch that read something."""
        query = self._start(availableNow=True)
        try:
            assert query.awaitTermination(120)
            progress = [json.loads(each.json) for each in query.recentProgress]
            return [batch for batch in progress if batch["numInputRows"]]
        finally:
            query.stop()

    @contextlib.contextmanager
    def running(self) -> Iterator[Any]:
        """The query while the test does something else."""
        query = self._start(processingTime="200 milliseconds")
        try:
            yield query
        finally:
            query.stop()

    def values(self) -> list[int]:
        """What the sink has committed, sorted; nothing before its first batch. Without Spark, because tests call it often."""
        out = self.directory / "out"
        return sorted(numbers_in_parquet(out).elements()) if (out / "_spark_metadata").exists() else []

    def wait_for(self, expected: list[int], query: Any) -> None:
        """Until exactly that has arrived. Raises AssertionError when the query ends before."""

        def look() -> bool:
            found = self.values()
            assert query.isActive, query.exception()
            return len(found) >= len(expected)

        wait_for(f"{len(expected)} rows", look, 120)
        assert self.values() == expected
