"""The HTTP port of a broker with metricsExporterType=PROM: when it opens, what it shows, when the broker is ready."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from aerobee.broker.config import BrokerConfig
from aerobee.broker.exporter.families import broker_families
from aerobee.broker.exporter.lag_sampler import LagSampler
from aerobee.broker.parts import BrokerParts
from aerobee.broker.registration import Registration
from aerobee.broker.role import Role, RoleState
from aerobee.monitoring.exposition import Family
from aerobee.monitoring.health import Health
from aerobee.monitoring.http_server import HttpServer
from aerobee.store.message_store import MessageStore


class Exporter:
    """open() before the store is loaded, so that a long recovery can be watched; serve() when everything runs; close()."""

    def __init__(self, config: BrokerConfig) -> None:
        """Raises ConfigError when the extra `metrics` is not installed."""
        self.health = Health("broker")
        self._parts: BrokerParts | None = None
        self._lags: LagSampler | None = None
        self._server = HttpServer(
            host=config.metrics_prom_exporter_host,
            port=config.metrics_prom_exporter_port,
            health=self.health,
            families=self._families,
        )

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        return self._server.address

    async def open(self) -> None:
        """Listen: alive, not started, without numbers. Raises OSError when the address is taken."""
        await self._server.start()

    def serve(
        self, parts: BrokerParts, registration: Registration, out_of_sync: Callable[[], str] | None = None
    ) -> None:
        """The broker has started: show its numbers, measure lag, be ready when nothing speaks against it.

        `out_of_sync` is there in controller mode: why this broker is not in sync with its group.
        """
        self._parts = parts
        self._lags = LagSampler(
            store=parts.store,
            offsets=parts.offsets,
            topics=parts.topics,
            groups=parts.groups,
            consumers=parts.consumers,
            clock=parts.clock,
            interval_s=lambda: parts.live.value.metrics_lag_interval_millis / 1000,
        )
        for name, check in broker_checks(parts.store, parts.role, registration):
            self.health.check(name, check)
        if out_of_sync is not None:
            self.health.check("sync", out_of_sync)
        self.health.is_started = True
        self._lags.start()

    async def close(self) -> None:
        """Measure no more, close the port."""
        if self._lags is not None:
            self._lags.stop()
        await self._server.stop()

    def _families(self) -> Iterator[Family]:
        if self._parts is None or self._lags is None:
            return iter(())
        return broker_families(self._parts, self._lags)


def broker_checks(
    store: MessageStore, role: RoleState, registration: Registration
) -> tuple[tuple[str, Callable[[], str]], ...]:
    """Why a broker should get no work now."""

    def writable() -> str:
        return store.writability.reason if role.takes_writes else ""

    def fenced() -> str:
        return role.reason if role.role is Role.FENCED else ""

    def registered() -> str:
        if not registration.nameservers or any(registration.registered_at_ms.values()):
            return ""
        failures = "; ".join(f"{name}: {why}" for name, why in registration.failures.items())
        return f"registered at no NameServer{': ' + failures if failures else ''}"

    return (("store", writable), ("role", fenced), ("registration", registered))
