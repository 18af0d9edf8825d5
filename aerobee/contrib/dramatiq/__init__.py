"""dramatiq over Aerobee or RocketMQ. Needs the extra `dramatiq`.

dramatiq.set_broker(AerobeeBroker("127.0.0.1:9876", namespace="shop"))
"""

from __future__ import annotations

from aerobee.contrib.dramatiq.broker import AerobeeBroker

__all__ = ["AerobeeBroker"]
