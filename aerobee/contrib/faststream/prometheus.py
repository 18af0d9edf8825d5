"""FastStream's Prometheus middleware for this broker. Needs `faststream[prometheus]`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from faststream._internal.constants import EMPTY
from faststream.prometheus.middleware import PrometheusMiddleware

from aerobee.contrib.faststream.body_bytes import body_bytes
from aerobee.contrib.faststream.incoming import Incoming


class AerobeeMetricsSettingsProvider:
    """Labels of FastStream's metrics."""

    messaging_system = "rocketmq"

    def get_consume_attrs_from_message(self, message: Any) -> dict[str, Any]:
        """Topic, bytes and number of the messages of one handler call."""
        raw: Incoming | tuple[Incoming, ...] = message.raw_message
        batch = raw if isinstance(raw, tuple) else (raw,)
        return {
            "destination_name": batch[0].topic,
            "message_size": body_bytes(message),
            "messages_count": len(batch),
        }

    def get_publish_destination_name_from_cmd(self, cmd: Any) -> str:
        """The topic."""
        return str(cmd.destination)


class AerobeePrometheusMiddleware(PrometheusMiddleware):
    """`AerobeeBroker(middlewares=[AerobeePrometheusMiddleware(registry=registry)])`."""

    def __init__(
        self,
        *,
        registry: Any,
        app_name: str = EMPTY,
        metrics_prefix: str = "faststream",
        received_messages_size_buckets: Sequence[float] | None = None,
        **labels: Callable[[Any], str] | Any,
    ) -> None:
        """The arguments are those of FastStream's middlewares; `custom_labels` from FastStream 0.7 on."""
        super().__init__(
            settings_provider_factory=lambda _: AerobeeMetricsSettingsProvider(),
            registry=registry,
            app_name=app_name,
            metrics_prefix=metrics_prefix,
            received_messages_size_buckets=received_messages_size_buckets,
            **labels,
        )
