"""tls.server.plainListeners: names of listeners that are there, each of one of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee.errors import ConfigError
from aerobee.ops.servers.broker import start_broker
from aerobee.ops.servers.controller import make_controller, names_of
from aerobee.ops.servers.nameserver import _names, start_nameserver
from aerobee.ops.settings.settings import (
    ControllerSettings,
    broker_settings,
    controller_settings,
    nameserver_settings,
)
from tests.ports import free_port

PLAIN = "tls.server.plainListeners"
INSIDE = "listeners=internal://127.0.0.1:0,external://127.0.0.1:0"


def broker(directory: Path, *more: str) -> None:
    """Make one, which is not started."""
    own = (f"storePathRootDir={directory}", "bindAddress=127.0.0.1")
    start_broker(broker_settings(assignments=[*own, *more], environ={}))


async def test_a_brokers_second_port_is_a_name_where_there_is_one(tmp_path: Path) -> None:
    port = free_port()
    broker(tmp_path, f"listenPort={port}", f"{PLAIN}=default,vip")
    broker(tmp_path, INSIDE, f"{PLAIN}=internal,vip")
    for without in ("enableVipListener=false", "listenPort=0"):
        with pytest.raises(
            ConfigError, match=r"names unknown listeners: vip; this process has internal, external$"
        ):
            broker(tmp_path, INSIDE, without, f"{PLAIN}=internal,vip")


async def test_a_name_that_two_listeners_have_is_refused(tmp_path: Path) -> None:
    twice = "listeners=vip://127.0.0.1:0"
    with pytest.raises(ConfigError, match="names vip, but two listeners"):
        broker(tmp_path, twice, f"{PLAIN}=vip")
    broker(tmp_path, twice, "enableVipListener=false", f"{PLAIN}=vip")
    broker(tmp_path, twice)  # no setting names it


def quorum(directory: Path, *more: str) -> list[str]:
    port = free_port()
    return [
        "controllerDLegerGroup=q",
        f"controllerDLegerPeers=n0-127.0.0.1:{port}",
        "controllerDLegerSelfId=n0",
        f"controllerStorePath={directory}",
        "bindAddress=127.0.0.1",
        *more,
    ]


async def test_a_controller_has_a_default_listener_only_with_a_port_of_its_own(tmp_path: Path) -> None:
    port = free_port()
    for more in ((), (f"{PLAIN}=quorum",), (f"listenPort={port}", f"{PLAIN}=quorum,default")):
        make_controller(controller_settings(assignments=quorum(tmp_path, *more), environ={}))
    with pytest.raises(ConfigError, match=r"names unknown listeners: default; this process has quorum$"):
        make_controller(controller_settings(assignments=quorum(tmp_path, f"{PLAIN}=default"), environ={}))


async def hosted(directory: Path, *more: str) -> None:
    """Make a NameServer with a controller as `aerobee nameserver` does."""
    own = quorum(directory, "enableControllerInNamesrv=true", f"kvConfigPath={directory / 'kv.json'}", *more)
    settings = nameserver_settings(assignments=own, environ={})
    assert settings.controller is not None
    names = (*_names(settings), *names_of(settings.controller))
    start_nameserver(settings, None, names)
    make_controller(ControllerSettings(settings.controller, settings.tls), names)


async def test_listeners_of_a_nameserver_and_of_its_controller_have_names_of_their_own(
    tmp_path: Path,
) -> None:
    port = free_port()
    await hosted(tmp_path, f"listenPort={port}", f"{PLAIN}=default,quorum")
    with pytest.raises(
        ConfigError, match=r"names unknown listeners: default; this process has internal, external, quorum$"
    ):
        await hosted(tmp_path, INSIDE, f"{PLAIN}=internal,default")
    with pytest.raises(ConfigError, match="names quorum, but two listeners"):
        await hosted(tmp_path, "listeners=quorum://127.0.0.1:0", f"{PLAIN}=quorum")
