"""taskiq over Aerobee or RocketMQ. Needs the extra `taskiq`.

broker = AerobeeBroker("127.0.0.1:9876", topic="shop-tasks")
scheduler = TaskiqScheduler(broker, [AerobeeScheduleSource("127.0.0.1:9876")])
"""

from __future__ import annotations

from aerobee.contrib.taskiq.broker import AerobeeBroker
from aerobee.contrib.taskiq.schedule_source import AerobeeScheduleSource

__all__ = ["AerobeeBroker", "AerobeeScheduleSource"]
