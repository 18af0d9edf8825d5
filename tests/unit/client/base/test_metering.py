"""The counters of the clients: what they add up, and their bounds."""

from __future__ import annotations

import gc

import pytest

from aerobee.client.base import metering
from aerobee.client.base.metering import BOUNDS_S, OTHER, ClientState, Durations, Meters
from aerobee.errors import SendFailed


class Client:
    """A client with a present state."""

    def __init__(self, state: ClientState) -> None:
        self.present = state

    def state(self) -> ClientState:
        return self.present


def group_of(meters: Meters, kind: str = "producer", group: str = "g") -> metering.GroupFigures:
    (found,) = [each for each in meters.read() if (each.kind, each.group) == (kind, group)]
    return found


def test_meter_is_absent_until_enabled() -> None:
    meters, client = Meters(), Client(ClientState())
    assert meters.open("producer", "g", client.state) is None
    meters.enable()
    assert meters.open("producer", "g", client.state) is not None
    assert meters.open("producer", "_INNER_TRACE_PRODUCER-g-PRODUCE", client.state) is None


def test_durations_fall_into_the_bucket_of_their_bound() -> None:
    durations = Durations()
    for seconds in (0.0, BOUNDS_S[0], BOUNDS_S[0] + 1e-9, BOUNDS_S[-1], BOUNDS_S[-1] + 1):
        durations.record(seconds)
    assert durations.counts[:2] == [2, 1]
    assert durations.counts[-2:] == [1, 1]
    assert durations.count == 5


def test_totals_remain_when_clients_close_or_vanish() -> None:
    meters = Meters()
    meters.enable()
    closed, forgotten, open_ = (Client(ClientState(clients=1, in_flight=2)) for _ in range(3))
    for client, is_closed in ((closed, True), (forgotten, False), (open_, False)):
        meter = meters.open("producer", "g", client.state)
        assert meter is not None
        meter.sent("t", 0.002, count=3)
        meter.send_failed("t", SendFailed("no"), count=2)
        if is_closed:
            meters.close(meter)
            meters.close(meter)
    del client, meter, forgotten
    gc.collect()
    found = group_of(meters)
    figures = found.topics["t"]
    assert (figures.sends.count, figures.sent_further) == (3, 6)
    assert figures.send_failures == {"SendFailed": 6}
    assert (found.state.clients, found.state.in_flight) == (1, 2)


def test_topics_groups_and_errors_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metering, "TOPICS_MAX", 3)
    monkeypatch.setattr(metering, "GROUPS_MAX", 2)
    monkeypatch.setattr(metering, "ERRORS_MAX", 2)
    meters = Meters()
    meters.enable()
    clients = [Client(ClientState()) for _ in range(4)]
    opened = [meters.open("producer", f"g{n}", client.state) for n, client in enumerate(clients)]
    for meter in opened:
        assert meter is not None
        for number in range(10):
            meter.sent(f"t{number}", 0.001)
            meter.send_failed("t0", type(f"Error{number}", (Exception,), {})())
    read = {each.group: each for each in meters.read()}
    assert set(read) == {"g0", "g1", OTHER}
    assert set(read["g0"].topics) == {"t0", "t1", "t2", OTHER}
    assert read[OTHER].topics[OTHER].sends.count == 2 * 7
    assert read["g0"].topics["t0"].send_failures == {"Error0": 1, "Error1": 1, OTHER: 8}


def test_disable_forgets_what_was_counted() -> None:
    meters, client = Meters(), Client(ClientState())
    meters.enable()
    meter = meters.open("producer", "g", client.state)
    assert meter is not None
    meter.sent("t", 0.1)
    meters.disable()
    assert not list(meters.read())
    assert meters.open("producer", "g", client.state) is None
