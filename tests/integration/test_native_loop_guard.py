"""A Python whose event loop lacks the private attributes that the native one reads gets the usual event loop."""

from __future__ import annotations

import asyncio
import logging
import selectors

import pytest

from aerobee.broker.fastpath.choice import choose_backend
from aerobee.message import Message
from aerobee.remoting import native_loop
from aerobee.remoting.native_loop import PRIVATE_ATTRIBUTES, NativeEventLoop, NativeSockets, new_event_loop
from aerobee.testing import LocalCluster


class Renamed(NativeEventLoop):
    """A loop of a Python that has another name for one attribute, from its making until it is closed."""

    attribute = ""
    is_closing = False

    def __getattribute__(self, name: str) -> object:
        if name == type(self).attribute and not type(self).is_closing:
            raise AttributeError(name)
        return super().__getattribute__(name)

    def close(self) -> None:
        type(self).is_closing = True
        super().close()


class Sockets:
    """As much of NativeSockets as a loop needs that never runs."""

    def watch_other(self, descriptor: int, mask: int) -> None: ...


def make_sockets() -> NativeSockets:
    return Sockets()  # type: ignore[return-value]


@pytest.mark.parametrize("attribute", PRIVATE_ATTRIBUTES)
def test_a_missing_attribute_gives_the_usual_loop_and_a_line(
    attribute: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Renamed, "attribute", attribute)
    monkeypatch.setattr(Renamed, "is_closing", False)
    monkeypatch.setattr(native_loop, "NativeEventLoop", Renamed)
    usual = asyncio.SelectorEventLoop(selectors.SelectSelector())
    with caplog.at_level(logging.WARNING):
        assert new_event_loop(make_sockets, lambda: usual) is usual
    usual.close()
    (line,) = [record.getMessage() for record in caplog.records]
    assert attribute in line
    assert "the usual event loop runs" in line
    assert Renamed.is_closing, "the loop that cannot be used is closed"


@pytest.mark.parametrize(
    ("attribute", "other"), [("_ready", iter(())), ("_scheduled", {}), ("_stopping", None)]
)
def test_an_attribute_of_another_type_gives_the_usual_loop(
    attribute: str, other: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Changed(NativeEventLoop):
        def __getattribute__(self, name: str) -> object:
            is_asked_by_guard = name == attribute and not super().__getattribute__("_closed") and self.is_made
            return other if is_asked_by_guard else super().__getattribute__(name)

        is_made = False

        def __init__(self, sockets: NativeSockets) -> None:
            super().__init__(sockets)
            self.is_made = True

        def close(self) -> None:
            self.is_made = False
            super().close()

    monkeypatch.setattr(native_loop, "NativeEventLoop", Changed)
    usual = asyncio.SelectorEventLoop(selectors.SelectSelector())
    assert new_event_loop(make_sockets, lambda: usual) is usual
    usual.close()


def test_this_python_has_what_the_native_loop_reads(caplog: pytest.LogCaptureFixture) -> None:
    loop = new_event_loop(make_sockets, asyncio.new_event_loop)
    try:
        assert isinstance(loop, NativeEventLoop)
    finally:
        loop.close()
    assert not caplog.records


def test_native_sockets_serve_on_the_usual_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    sockets = choose_backend().make_sockets
    if sockets is None:
        pytest.skip("only the native backend on Linux has sockets")
    monkeypatch.setattr(Renamed, "attribute", "_scheduled")
    monkeypatch.setattr(Renamed, "is_closing", False)
    monkeypatch.setattr(native_loop, "NativeEventLoop", Renamed)

    async def send() -> None:
        async with LocalCluster() as cluster:
            await cluster.create_topic("orders")
            async with cluster.producer() as producer:
                assert (await producer.send(Message("orders", b"one"))).message_id

    with asyncio.Runner(loop_factory=lambda: new_event_loop(sockets, asyncio.new_event_loop)) as runner:
        runner.run(send())
