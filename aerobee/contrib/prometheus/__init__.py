"""Metrics of the clients of this process for `prometheus-client` (extra `prometheus`).

from prometheus_client import REGISTRY
from aerobee.contrib.prometheus import AerobeeCollector

REGISTRY.register(AerobeeCollector())      # before the clients are made
"""

from aerobee.contrib.prometheus.collector import AerobeeCollector

__all__ = ["AerobeeCollector"]
