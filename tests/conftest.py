"""What holds for all tests: a busy machine is not a fault of what is tested."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from aerobee.broker.state.config import BrokerConfig
from tests.rounds import rounds

settings.register_profile("no time limits", deadline=None, max_examples=rounds(100))
settings.load_profile("no time limits")

# Several clusters that `up` starts at the same time would choose the same free port.
os.environ.setdefault("AEROBEE_NO_GRPC", "1")

# Allocations between two collections. With the default of 700 the collector walks the items of thousands of tests again and
# again: it takes a fifth of the time of the unit tests.
gc.set_threshold(50_000, 20, 20)


def pytest_collection_finish() -> None:
    """The items live until the end: no later collection walks them."""
    gc.freeze()


_DEFAULT_WAIT_MS = BrokerConfig().wait_time_mills_in_send_queue
_wait_limit_ms = BrokerConfig.send_wait_limit_ms.fget  # type: ignore[attr-defined]


@pytest.fixture(autouse=True, scope="session")
def brokers_of_this_process_take_sends_however_long_they_waited() -> Iterator[None]:
    """The default of waitTimeMillsInSendQueue refuses sends that waited 200 ms, and clients try again; raw requests of tests do
    not. A test that sets the key gets what it sets."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BrokerConfig, "send_wait_limit_ms", property(_patient))
        yield


def _patient(config: BrokerConfig) -> int:
    is_default = config.wait_time_mills_in_send_queue == _DEFAULT_WAIT_MS
    return 0 if is_default else int(_wait_limit_ms(config))
