"""What holds for all tests: a busy machine is not a fault of what is tested."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from aerobee.broker.state.config import BrokerConfig
from tests import sources
from tests.rounds import rounds

RULES = Path(__file__).resolve().parent / "unit"  # the folder of the tests that read the source code

settings.register_profile("no time limits", deadline=None, max_examples=rounds(100))
settings.load_profile("no time limits")

# Several clusters that `up` starts at the same time would choose the same free port.
os.environ.setdefault("AEROBEE_NO_GRPC", "1")

# Allocations between two collections. With the default of 700 the collector walks the items of thousands of tests again and
# again: it takes a fifth of the time of the unit tests.
gc.set_threshold(50_000, 20, 20)


# Growth of this process after which garbage is collected. Stores in memory are a few objects of many
# megabytes: the count of allocations does not see them, and without this the unit tests take 10 GB.
GROWTH_BYTES_MAX = 256 << 20
_resident = 0


def pytest_collection_finish() -> None:
    """The items live until the end: no later collection walks them."""
    gc.freeze()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Collect large garbage, and forget the syntax trees behind the last test of their folder: a worker that the simulation
    forks from this process has them as well."""
    global _resident
    if nextitem is not None and item.path.parent == RULES and nextitem.path.parent != RULES:
        sources.forget()
        gc.collect()
    size = _resident_bytes()
    if size > _resident + GROWTH_BYTES_MAX:
        gc.collect()
        size = _resident = _resident_bytes()
    _resident = min(_resident, size) or size


def _resident_bytes() -> int:
    """Memory that this process has now; 0 where there is no /proc."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except FileNotFoundError:
        return 0


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
