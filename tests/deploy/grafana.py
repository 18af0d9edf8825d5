"""Grafana's Prometheus data source as a process, and what Grafana's pages ask of it: values of variables, and series for a panel."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from tests.ports import free_port
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
PROGRAM = Path(os.environ.get("AEROBEE_DEPLOY_DIR", ROOT / ".deploy")).resolve() / "grafana" / "datasource"
RANGE_MS = 3_600_000  # as the dashboards open: now-1h
WIDTH = 600  # pixels of a panel, the points that it asks for
INTERVAL_MS = 15_000  # between points: RANGE_MS / WIDTH, but not less than the data source's scrape interval
SPECIAL = re.compile(r"[$^*{}\[\]+?.()|]")


@dataclass(frozen=True)
class Series:
    """A line of a panel: what its legend says, its labels, its numbers without those that are not drawn."""

    legend: str
    labels: Mapping[str, str]
    numbers: tuple[float, ...]


class Source:
    """The data source at `address`."""

    def __init__(self, session: aiohttp.ClientSession, address: str) -> None:
        self._session = session
        self._address = address

    async def values(self, query: str) -> list[str]:
        """What `label_values(selector, label)` offers for a variable."""
        found = re.fullmatch(r"label_values\((.+), (\w+)\)", query)
        assert found is not None, query
        selector, label = found.groups()
        now = time.time()
        answer = await self._session.get(
            f"{self._address}/api/datasources/uid/prometheus/resources/api/v1/label/{label}/values",
            params={"match[]": selector, "start": str(now - RANGE_MS / 1000), "end": str(now)},
        )
        body = await answer.json(content_type=None)
        assert answer.status == 200, body
        return sorted(body["data"])

    async def series(self, targets: list[dict[str, Any]]) -> dict[str, list[Series]]:
        """What each of a panel's targets, by its refId, has to draw. The queries' variables must be filled."""
        now = round(time.time() * 1000)
        queries = [{**target, "intervalMs": INTERVAL_MS, "maxDataPoints": WIDTH} for target in targets]
        answer = await self._session.post(
            f"{self._address}/api/ds/query",
            json={"queries": queries, "from": str(now - RANGE_MS), "to": str(now)},
        )
        assert answer.status == 200, await answer.text()
        results = (await answer.json())["results"]
        for ref, result in results.items():
            assert "error" not in result, f"{ref}: {result['error']}: {targets}"
        return {ref: list(_lines(result["frames"])) for ref, result in results.items()}


def _lines(frames: list[dict[str, Any]]) -> Iterator[Series]:
    for frame in frames:
        columns = zip(frame["schema"]["fields"], frame["data"]["values"], strict=False)
        for field, numbers in columns:
            if field["type"] == "number":
                legend = field.get("config", {}).get("displayNameFromDS", "")
                drawn = tuple(number for number in numbers if number is not None)
                yield Series(legend, field.get("labels", {}), drawn)


def filled(query: str, variables: Mapping[str, str | list[str]]) -> str:
    """The query with $name replaced: one value as it is, several as a pattern in which special characters are quoted."""

    def value_of(name: re.Match[str]) -> str:
        value = variables.get(name[1])
        if value is None:
            return name[0]  # $__rate_interval: the data source's own
        if isinstance(value, str):
            return value
        quoted = [SPECIAL.sub(lambda char: "\\\\" + char[0], each) for each in value]
        return quoted[0] if len(quoted) == 1 else f"({'|'.join(quoted)})"

    return re.sub(r"\$(\w+)", value_of, query)


@asynccontextmanager
async def data_source(prometheus: str) -> AsyncIterator[Source]:
    """The data source of deploy/grafana/provisioning, asking the Prometheus at this address instead."""
    if not PROGRAM.exists():
        pytest.fail(f"{PROGRAM} is missing: run scripts/setup-grafana first (make grafana)")
    (settings,) = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yml").read_text())[
        "datasources"
    ]
    assert (settings["type"], settings["uid"]) == ("prometheus", "prometheus")
    path = Path(tempfile.mkdtemp(prefix="aerobee-grafana-"))
    address = f"127.0.0.1:{free_port()}"
    with (path / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            PROGRAM, address, prometheus, json.dumps(settings.get("jsonData", {})), stdout=log, stderr=log
        )
        try:
            async with aiohttp.ClientSession() as session:
                source = Source(session, f"http://{address}")

                async def answers() -> bool:
                    assert process.returncode is None, (path / "log").read_text()[-2000:]
                    await source.values("label_values(up, job)")
                    return True

                await wait_until(answers, passing=(aiohttp.ClientConnectionError,))
                yield source
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()
            shutil.rmtree(path, ignore_errors=True)
