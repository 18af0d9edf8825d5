"""One cluster of a console: its clients, snapshot, views, actions and live messages. A console may have several."""

from __future__ import annotations

import json
from dataclasses import replace

from aerobee.client import ClientConfig, Producer
from aerobee.clock import Clock
from aerobee.console.actions import Actions
from aerobee.console.body_schemas import BodySchemas
from aerobee.console.charts import Charts
from aerobee.console.config import ConsoleConfig
from aerobee.console.masks import Masks
from aerobee.console.placement_view import PlacementView
from aerobee.console.prometheus import Prometheus
from aerobee.console.snapshot import Snapshot
from aerobee.console.tail import Tails
from aerobee.console.topology import Topology
from aerobee.console.views import Views
from aerobee.placement.cluster import PlacementAdmin


class ClusterPages:
    """What the pages of one cluster read and change. start(), then stop()."""

    def __init__(
        self,
        nameserver: str,
        config: ConsoleConfig,
        clock: Clock,
        prometheus: Prometheus | None,
        client: ClientConfig | None,
    ) -> None:
        self.nameserver = nameserver
        self.admin = PlacementAdmin(nameserver, client=client)
        # The console may start before its cluster: its pages say what does not answer.
        patient = replace(client or ClientConfig(), require_nameserver=False)
        self._producer = Producer(nameserver, "CONSOLE_PRODUCER", client=patient)
        self.snapshot = Snapshot(self.admin, clock, config.refresh_s)
        self.placement = PlacementView(self.admin, clock, nameserver, config.plan_file)
        charts = Charts(self.snapshot.history, clock, prometheus)
        topology = Topology(self.admin, self.snapshot, clock, client)
        schemas, masks = BodySchemas(config.schemas), Masks(config.masks)
        self.views = Views(self.admin, self.snapshot, clock, self.placement, charts, topology, schemas, masks)
        self.actions = Actions(self.admin, self._producer, clock, nameserver, topology)
        self.tails = Tails(self.admin, masks)
        self._event: tuple[int, bytes] = (-1, b"")  # a snapshot, encoded once for all streams

    async def start(self) -> None:
        await self.admin.start()
        await self._producer.start()
        self.snapshot.start()

    async def stop(self) -> None:
        """Stop the refreshes and the live messages; close() closes the clients."""
        await self.tails.stop()
        await self.snapshot.stop()

    async def close(self) -> None:
        await self._producer.close()
        await self.admin.close()

    async def next_event(self, number: int) -> tuple[int, bytes]:
        """The overview as JSON after the refresh that follows number `number`, with its own number."""
        self.snapshot.asked()
        await self.snapshot.next(number)
        if self.snapshot.number != self._event[0]:
            self._event = self.snapshot.number, json.dumps(self.snapshot.overview()).encode()
        return self._event
