"""`aerobee nameserver`: a NameServer in this process, with RocketMQ's flags and file keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from aerobee.config import to_properties
from aerobee.nameserver import NameServer
from aerobee.nameserver.server import listeners_of
from aerobee.ops.options.options import AsJson
from aerobee.ops.servers.listening import require_free_port
from aerobee.ops.servers.serving import (
    Assignments,
    ConfigPath,
    LogLevel,
    PrintConfig,
    WithStdin,
    flags_of,
    force_on_second_signal,
    set_log_level,
    start_and_wait,
    stopping_with_stdin,
    write_config,
)
from aerobee.ops.settings.settings import ControllerSettings, NameServerSettings, nameserver_settings
from aerobee.ops.terminal.output import Output
from aerobee.ops.terminal.run import Stop, run
from aerobee.system import raise_open_files_max

if TYPE_CHECKING:
    from aerobee.ha.controller.controller import Controller


def register(app: typer.Typer) -> None:
    app.command("nameserver")(nameserver)


def nameserver(
    config: ConfigPath = None,
    port: Annotated[int | None, typer.Option("--port", help="Port to listen at (default 9876).")] = None,
    host: Annotated[str | None, typer.Option("--host", help="Address to bind to.")] = None,
    assignments: Assignments = None,
    print_config: PrintConfig = False,
    log_level: LogLevel = "info",
    stop_with_stdin: WithStdin = False,
    as_json: AsJson = False,
) -> None:
    """Run a NameServer in this process."""
    out = Output(as_json)
    flags = flags_of(("listenPort", port, "--port"), ("bindAddress", host, "--host"))
    settings = nameserver_settings(path=config, assignments=assignments or (), flags=flags, note=out.note)
    if print_config:
        write_config(out, to_properties(settings.server, settings.tls, settings.access))
        return
    set_log_level(log_level)
    raise_open_files_max()  # half of the limit is for connections

    async def command(stop: Stop) -> None:
        force_on_second_signal(stop, out)
        if settings.controller is None:
            server = start_nameserver(settings, config)
            with stopping_with_stdin(stop, stop_with_stdin):
                await start_and_wait(server, stop, out, "nameserver", settings.server.listen_port)
            return
        # Few NameServers run a controller, and its import takes a tenth of a second.
        from aerobee.ops.servers.controller import make_controller, names_of, stopping_when_ended

        listeners = (*_names(settings), *names_of(settings.controller))
        server = start_nameserver(settings, config, listeners)
        controller = make_controller(ControllerSettings(settings.controller, settings.tls), listeners)
        both = NameServerWithController(server, controller)
        with stopping_with_stdin(stop, stop_with_stdin):
            async with stopping_when_ended(controller, stop):
                await start_and_wait(both, stop, out, "nameserver", settings.server.listen_port)

    run(command)


class NameServerWithController:
    """A NameServer and one of the controllers in one process (enableControllerInNamesrv)."""

    def __init__(self, server: NameServer, controller: Controller) -> None:
        self._server = server
        self._controller = controller
        server.show_too(controller.families)

    @property
    def address(self) -> str:
        return self._server.address

    async def start(self) -> None:
        await self._server.start()
        try:
            await self._controller.start()
        except BaseException:
            await self._server.stop()
            raise

    async def stop(self) -> None:
        await self._controller.stop()
        await self._server.stop()


def _names(settings: NameServerSettings) -> tuple[str, ...]:
    return tuple(each.name for each in listeners_of(settings.server))


def start_nameserver(
    settings: NameServerSettings, settings_path: str | None = None, listeners: Sequence[str] = ()
) -> NameServer:
    """Create a NameServer, not started yet. `listeners`: names of all listeners of the process, if it has other servers too.
    Raises PortTaken."""
    server = settings.server
    if not server.listeners:
        require_free_port(server.bind_address, server.listen_port, "the NameServer", "--port or listenPort")
    return NameServer(
        server,
        tls=settings.tls.server_tls(listeners or _names(settings)),
        access=settings.access,
        settings_path=settings_path,
    )
