"""`aerobee controller`: one controller of a quorum in this process, with RocketMQ's file keys."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import typer

from aerobee.access.opening import guard_of
from aerobee.config import to_properties
from aerobee.errors import ConfigError
from aerobee.ha.controller.config import ControllerConfig
from aerobee.ha.controller.controller import QUORUM_LISTENER, Controller, listeners_of
from aerobee.host_port import is_loopback
from aerobee.ops.options.options import AsJson
from aerobee.ops.servers.listening import require_directory, require_free_port
from aerobee.ops.servers.serving import (
    Assignments,
    ConfigPath,
    LogLevel,
    PrintConfig,
    WithStdin,
    force_on_second_signal,
    set_log_level,
    start_and_wait,
    stopping_with_stdin,
    write_config,
)
from aerobee.ops.settings.settings import ControllerSettings, controller_settings
from aerobee.ops.terminal.output import Output
from aerobee.ops.terminal.run import Stop, run
from aerobee.remoting.tls import TlsMode
from aerobee.system import raise_open_files_max

WHO_MAY_OPEN = (
    logging.WARNING,
    "adminOpen=true: every client that reaches this controller's port may elect masters and change settings and members",
)
WHO_MAY = (
    logging.INFO,
    "this controller serves administration requests from its own machine only; authenticationEnabled or adminOpen=true "
    "change that",
)
log = logging.getLogger("aerobee.controller")


def register(app: typer.Typer) -> None:
    app.command("controller")(controller)


def controller(
    config: ConfigPath = None,
    assignments: Assignments = None,
    print_config: PrintConfig = False,
    log_level: LogLevel = "info",
    stop_with_stdin: WithStdin = False,
    as_json: AsJson = False,
) -> None:
    """Run one controller of a quorum in this process; controllers elect the masters of broker groups."""
    out = Output(as_json)
    settings = controller_settings(path=config, assignments=assignments or (), note=out.note)
    if print_config:
        write_config(out, to_properties(settings.controller, settings.tls))
        return
    set_log_level(log_level)
    raise_open_files_max()  # half of the limit is for connections

    async def command(stop: Stop) -> None:
        force_on_second_signal(stop, out)
        server = make_controller(settings)
        with stopping_with_stdin(stop, stop_with_stdin):
            async with stopping_when_ended(server, stop):
                await start_and_wait(server, stop, out, "controller", settings.controller.own_port)

    run(command)


@asynccontextmanager
async def stopping_when_ended(server: Controller, stop: Stop) -> AsyncIterator[None]:
    """Set `stop` when the controller ends by itself, and raise its failure at the end: a controller whose disk failed must not
    remain as a process that looks alive."""

    async def wait() -> None:
        await server.ended.wait()
        stop.set()

    watch = asyncio.create_task(wait())
    try:
        yield
    finally:
        watch.cancel()
    if server.failure is not None:
        raise server.failure


def names_of(config: ControllerConfig) -> tuple[str, ...]:
    """Names of the controller's listeners."""
    return tuple(each.name for each in listeners_of(config))


def make_controller(settings: ControllerSettings, listeners: Sequence[str] = ()) -> Controller:
    """Create a controller, not started yet. `listeners`: names of all listeners of the process, if it has other servers too.
    Raises ConfigError, PortTaken, LocalRefused."""
    config = settings.controller
    tls = settings.tls.server_tls(listeners or names_of(config))
    if tls.mode is TlsMode.ENFORCING and QUORUM_LISTENER not in tls.plain_listeners:
        raise ConfigError(
            "tls.server.mode is enforcing, but controllers communicate without TLS in this version, so they could not reach "
            "each other; use permissive, or tls.server.plainListeners=quorum, and keep their ports within a trusted network"
        )
    require_free_port(config.bind_address, config.own_port, "the controller", "controllerDLegerPeers")
    require_directory(Path(config.directory), "controllerStorePath")
    if not config.authentication_enabled and not is_loopback(config.bind_address):
        log.log(*WHO_MAY_OPEN if config.admin_open else WHO_MAY)
    return Controller(config, tls=tls, guard=guard_of(config.admin_open))
