"""OpenTelemetry spans and metrics of producers and consumers (extra `opentelemetry`).

telemetry = OpenTelemetry()                     # for the clients that get it
Producer(..., observers=[telemetry])
AerobeeInstrumentor().instrument()              # for all clients that are made afterwards
"""

from aerobee.contrib.opentelemetry.instrumentor import AerobeeInstrumentor
from aerobee.contrib.opentelemetry.observer import OpenTelemetry

__all__ = ["AerobeeInstrumentor", "OpenTelemetry"]
