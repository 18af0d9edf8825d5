"""Auto-instrumentation: `opentelemetry-instrument python app.py` finds this class by its entry point."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor

from aerobee.client.base.observer import install, uninstall
from aerobee.contrib.opentelemetry.observer import OpenTelemetry


class AerobeeInstrumentor(BaseInstrumentor):
    """Observes every producer and consumer that is made after instrument(), the clients of the bridges included.

    instrument() takes `tracer_provider`, `meter_provider` and `propagator`; the global ones by default. After uninstrument() existing
    clients record nothing either.
    """

    _observer: OpenTelemetry | None = None

    def instrumentation_dependencies(self) -> Collection[str]:
        """The package that is instrumented."""
        return ("aerobee >= 0.1.0",)

    def _instrument(self, **options: Any) -> None:
        self._observer = OpenTelemetry(
            tracer_provider=options.get("tracer_provider"),
            meter_provider=options.get("meter_provider"),
            propagator=options.get("propagator"),
        )
        install(self._observer)

    def _uninstrument(self, **options: Any) -> None:
        if self._observer is not None:
            uninstall(self._observer)
            self._observer.disable()
            self._observer = None
