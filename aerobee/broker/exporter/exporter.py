"""Export of a broker's metrics (metricsExporterType): HTTP port, exported metrics, readiness."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from aerobee.broker.consumer.wanted_messages import WantedMessages
from aerobee.broker.exporter.families import BrokerFamilies
from aerobee.broker.exporter.lag_sampler import LagSampler
from aerobee.broker.exporter.replication_families import follow_trouble
from aerobee.broker.membership.registration import Registration
from aerobee.broker.metrics.grpc_traffic import GrpcTraffic
from aerobee.broker.parts.parts import BrokerParts
from aerobee.broker.pop.pop_feature import Pop
from aerobee.broker.replication.replication import ReplicationState
from aerobee.broker.state.config import BrokerConfig
from aerobee.broker.state.feature import Feature
from aerobee.broker.state.role import Role, RoleState
from aerobee.clock import Clock
from aerobee.collector import hide_grown
from aerobee.monitoring.export import Export
from aerobee.monitoring.exposition import Family
from aerobee.monitoring.health import Health
from aerobee.remoting.loop_watch import LoopWatch
from aerobee.remoting.request_stats import RequestStats
from aerobee.store.message_store import MessageStore

SCOPE = "broker-meter"  # RocketMQ's name of the exporter


class Exporter:
    """The HTTP server of the metrics. Call open() before the store is loaded, so that a long recovery is visible;
    serve() when everything runs; then close().
    """

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        """Raises ConfigError when the required extra is not installed."""
        self.health = Health("broker")
        self._shown: BrokerFamilies | None = None
        self._lags: LagSampler | None = None
        self.export = Export(config, scope=SCOPE, health=self.health, families=self._families, clock=clock)

    @property
    def address(self) -> tuple[str, int]:
        """Address of the HTTP port."""
        return self.export.address

    async def open(self) -> None:
        """Listen: report alive, not started, without metrics. Raises OSError when the address is in use."""
        await self.export.start()

    def serve(
        self,
        parts: BrokerParts,
        registration: Registration,
        *,
        replication: Callable[[], ReplicationState],
        features: Iterable[Feature],
        watch: LoopWatch,
        requests: RequestStats,
        grpc_traffic: GrpcTraffic,
        out_of_sync: Callable[[], str] | None = None,
    ) -> None:
        """The broker has started: export its metrics, measure lag, report ready unless a check fails.

        `out_of_sync`, in controller mode only: the reason why this broker is not in sync with its group.
        """
        pops = [feature.engine.in_flight for feature in features if isinstance(feature, Pop)]
        self._lags = LagSampler(
            store=parts.store,
            offsets=parts.offsets,
            topics=parts.topics,
            groups=parts.groups,
            consumers=parts.consumers,
            locks=parts.locks,
            wanted=WantedMessages(
                store=parts.store,
                topics=parts.topics,
                consumers=parts.consumers,
                expressions=parts.expressions,
                live=parts.live,
            ),
            popped=lambda: [entry for table in pops for entry in table.entries()],
            decides=lambda: parts.role.role in (Role.MASTER, Role.ACTING),
            clock=parts.clock,
            interval_s=lambda: parts.live.value.metrics_lag_interval_millis / 1000,
            on_pass=self._prepare,
        )
        self._shown = BrokerFamilies(
            parts,
            self._lags,
            replication=replication,
            watch=watch,
            requests=requests,
            grpc_traffic=grpc_traffic,
        )
        for name, check in broker_checks(parts.store, parts.role, registration, replication):
            self.health.check(name, check)
        if out_of_sync is not None:
            self.health.check("sync", out_of_sync)
        self.health.is_started = True
        self._lags.start()
        self._prepare()

    async def close(self, *, last_round: bool = True) -> None:
        """Stop measuring, push the last metrics to the configured receivers, close the port."""
        if self._lags is not None:
            self._lags.stop()
        await self.export.stop(last_round=last_round)

    def _prepare(self) -> None:
        """Render a page after the start and after a large growth of the series, so that no scrape has to render the
        first page."""
        if self._shown is not None:
            hide_grown("series", self._shown.size)
            self.export.prepare(self._shown.size)

    def _families(self) -> Iterator[Family]:
        return self._shown.families() if self._shown is not None else iter(())


def broker_checks(
    store: MessageStore,
    role: RoleState,
    registration: Registration,
    replication: Callable[[], ReplicationState],
) -> tuple[tuple[str, Callable[[], str]], ...]:
    """Reasons why the broker is not ready."""

    def writable() -> str:
        return store.writability.reason if role.takes_writes else ""

    def fenced() -> str:
        return role.reason if role.role is Role.FENCED else ""

    def registered() -> str:
        if not registration.nameservers or any(registration.registered_at_ms.values()):
            return ""
        failures = "; ".join(f"{name}: {why}" for name, why in registration.failures.items())
        return f"registered at no NameServer{': ' + failures if failures else ''}"

    def follows() -> str:
        return follow_trouble(replication(), store.config.ha_max_gap_not_in_sync)

    return (("store", writable), ("role", fenced), ("registration", registered), ("replication", follows))
