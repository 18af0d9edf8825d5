"""Settings of how a server's numbers leave it, the same for a broker, a NameServer and a controller. Core.

Keys and defaults as BrokerConfig and ControllerConfig (RocketMQ), with one addition: `metricsExporterType` may name several,
PROM,OTLP_GRPC, so that health pages stay where numbers are pushed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from aerobee.clock import MS_PER_DAY
from aerobee.errors import ConfigError

DISABLE, PROM, OTLP_GRPC, LOG = "DISABLE", "PROM", "OTLP_GRPC", "LOG"
EXPORTERS = frozenset({PROM, OTLP_GRPC, LOG})
# They are of sockets and tasks that are made at the start.
METRICS_START_KEYS = frozenset(
    {
        "metricGrpcExporterIntervalInMills", "metricGrpcExporterTimeOutInMills", "metricLoggingExporterIntervalInMills",
        "metricsExportBatchMaxDataPoints", "metricsExporterType", "metricsGrpcExporterHeader", "metricsGrpcExporterTarget",
        "metricsInDelta", "metricsPromExporterHost", "metricsPromExporterPort",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConfig:
    """What a server's settings have of this; times in ms."""

    metrics_exporter_type: str = DISABLE
    """PROM, OTLP_GRPC, LOG, or several of them, separated by commas."""
    metrics_prom_exporter_host: str = ""
    """Address of the HTTP port. Empty: every address."""
    metrics_prom_exporter_port: int = 5_557
    """HTTP port of /metrics, /livez, /readyz and /startupz."""
    metrics_grpc_exporter_target: str = ""
    """http://host:4317, or host:port for TLS."""
    metrics_grpc_exporter_header: str = field(default="", repr=False)
    """name:value,name:value: headers of each OTLP_GRPC request. A secret."""
    metric_grpc_exporter_time_out_in_mills: int = 3_000
    """Time-out of one OTLP_GRPC request, in ms."""
    metric_grpc_exporter_interval_in_mills: int = 60_000
    """Interval between two OTLP_GRPC exports, in ms."""
    metric_logging_exporter_interval_in_mills: int = 10_000
    """Interval between two LOG exports, in ms."""
    metrics_export_batch_max_data_points: int = 1_000
    """Maximum number of data points in one OTLP_GRPC request."""
    metrics_in_delta: bool = False
    """OTLP_GRPC and LOG report the change since the last export instead of totals."""

    @property
    def exporters(self) -> frozenset[str]:
        """Those that are on."""
        named = (piece.strip() for piece in self.metrics_exporter_type.split(","))
        return frozenset(filter(None, named)) - {DISABLE}

    @property
    def otlp_headers(self) -> tuple[tuple[str, str], ...]:
        """Names in small letters, as gRPC asks for. Raises ConfigError, without a value in it."""
        headers = []
        for number, piece in enumerate(filter(None, self.metrics_grpc_exporter_header.split(",")), 1):
            name, colon, value = (part.strip() for part in piece.partition(":"))
            if (
                not colon
                or not name
                or not (name.isascii() and name.replace("-", "").replace("_", "").replace(".", "").isalnum())
            ):
                raise ConfigError(f"metricsGrpcExporterHeader: write name:value, which part {number} is not")
            headers.append((name.lower(), value))
        return tuple(headers)

    def check_metrics(self) -> None:
        """Raises ConfigError for values that cannot be."""
        unknown = sorted(self.exporters - EXPORTERS)
        if unknown:
            raise ConfigError(
                f"metricsExporterType is {self.metrics_exporter_type!r}, must be {DISABLE} or of {', '.join(sorted(EXPORTERS))}"
            )
        if OTLP_GRPC in self.exporters and not self.metrics_grpc_exporter_target:
            raise ConfigError(
                "metricsExporterType=OTLP_GRPC needs metricsGrpcExporterTarget, http://host:4317"
            )
        _ = self.otlp_headers
        for key, value, low, high in (
            ("metricsPromExporterPort", self.metrics_prom_exporter_port, 0, 65_535),
            ("metricGrpcExporterTimeOutInMills", self.metric_grpc_exporter_time_out_in_mills, 1, MS_PER_DAY),
            ("metricGrpcExporterIntervalInMills", self.metric_grpc_exporter_interval_in_mills, 100, MS_PER_DAY),
            ("metricLoggingExporterIntervalInMills", self.metric_logging_exporter_interval_in_mills, 100, MS_PER_DAY),
            ("metricsExportBatchMaxDataPoints", self.metrics_export_batch_max_data_points, 1, 100_000),
        ):  # fmt: skip
            if not low <= value <= high:
                raise ConfigError(f"{key} is {value}, must be {low} to {high}")
