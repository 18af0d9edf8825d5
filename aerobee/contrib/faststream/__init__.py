"""FastStream over Aerobee or RocketMQ. Needs the extra `faststream`.

broker = AerobeeBroker("127.0.0.1:9876")
app = FastStream(broker)
"""

from __future__ import annotations

from aerobee.client.consumer.subscription import Sql
from aerobee.contrib.faststream.annotations import AerobeeMessage
from aerobee.contrib.faststream.broker import AerobeeBroker
from aerobee.contrib.faststream.response import AerobeeResponse
from aerobee.contrib.faststream.router import AerobeePublisher, AerobeeRoute, AerobeeRouter
from aerobee.contrib.faststream.testing import TestAerobeeBroker

__all__ = [
    "AerobeeBroker",
    "AerobeeMessage",
    "AerobeePublisher",
    "AerobeeResponse",
    "AerobeeRoute",
    "AerobeeRouter",
    "Sql",
    "TestAerobeeBroker",
]
