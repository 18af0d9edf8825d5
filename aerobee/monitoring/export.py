"""All exporters of a server's metrics: `metricsExporterType` names one, several or none."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from aerobee.clock import Clock
from aerobee.metrics_config import LOG, OTLP_GRPC, PROM, MetricsConfig
from aerobee.monitoring.exposition import Family
from aerobee.monitoring.health import Health
from aerobee.monitoring.http_server import HttpServer
from aerobee.monitoring.otlp import OtlpReceiver
from aerobee.monitoring.push import LogSink, OtlpSink, Push


class Export:
    """The exporters of one server. start() once, then stop(); stop() without start() does nothing."""

    def __init__(
        self,
        config: MetricsConfig,
        *,
        scope: str,
        health: Health,
        families: Callable[[], Iterable[Family]],
        clock: Clock,
        by_registry: bool = False,
    ) -> None:
        """`by_registry`: see HttpServer. `scope` is the OpenTelemetry scope of a server's metrics. Raises ConfigError when an extra is not
        installed.
        """
        exporters = config.exporters
        self.http = (
            HttpServer(
                host=config.metrics_prom_exporter_host,
                port=config.metrics_prom_exporter_port,
                health=health,
                families=families,
                clock=clock,
                by_registry=by_registry,
            )
            if PROM in exporters
            else None
        )
        self.pushes: list[Push] = []
        if OTLP_GRPC in exporters:
            receiver = OtlpReceiver(config, scope=scope)
            self.pushes.append(
                Push(
                    lambda push: OtlpSink(receiver, push.deltas, config.metrics_export_batch_max_data_points),
                    families,
                    interval_s=config.metric_grpc_exporter_interval_in_mills / 1000,
                    in_delta=config.metrics_in_delta,
                )
            )
        if LOG in exporters:
            self.pushes.append(
                Push(
                    lambda push: LogSink(push.deltas),
                    families,
                    interval_s=config.metric_logging_exporter_interval_in_mills / 1000,
                    in_delta=config.metrics_in_delta,
                )
            )

    @property
    def address(self) -> tuple[str, int]:
        """Address of /metrics. Raises RuntimeError without PROM."""
        if self.http is None:
            raise RuntimeError("metricsExporterType does not say PROM")
        return self.http.address

    async def start(self) -> None:
        """Listen, and start to push. Raises OSError when the address is in use."""
        if self.http is not None:
            try:
                await self.http.start()
            except BaseException:
                await self.stop(last_round=False)  # a sink has opened a channel
                raise
        for push in self.pushes:
            push.start()

    def prepare(self, size: int) -> None:
        """See HttpServer.prepare."""
        if self.http is not None:
            self.http.prepare(size)

    async def stop(self, *, last_round: bool = True) -> None:
        """Push a last round to the receivers, then close the port."""
        for push in self.pushes:
            await push.stop(last_round=last_round)
        if self.http is not None:
            await self.http.stop()
