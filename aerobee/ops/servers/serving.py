"""Shared by the commands that run a server: options, start, and shutdown.

After the first Ctrl-C (or SIGTERM) the server refuses new requests, answers those in progress, unregisters and flushes. The
second one terminates the process immediately; the store then recovers at its next start, as after a crash.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from typing import Annotated, Protocol

import typer

from aerobee.config import Setting
from aerobee.ops.servers.listening import port_failure
from aerobee.ops.terminal.failure import ExitCode
from aerobee.ops.terminal.output import Output
from aerobee.ops.terminal.run import Stop

ConfigPath = Annotated[
    str | None,
    typer.Option("--config", "-c", metavar="FILE", help="Configuration file with key=value lines."),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set one configuration key; may be repeated."),
]
PrintConfig = Annotated[
    bool, typer.Option("--print-config", "-p", help="Print every key with its value, and exit.")
]
LogLevel = Annotated[str, typer.Option("--log-level", help="Log level: debug, info, warning or error.")]
WithStdin = Annotated[bool, typer.Option("--stop-with-stdin", hidden=True)]


class Server(Protocol):
    """A server that can be started and stopped: a NameServer, Broker, controller or console."""

    @property
    def address(self) -> str: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


async def start_and_wait(server: Server, stop: Stop, out: Output, what: str, port: int) -> None:
    """Start the server, report it, wait for the signal, drain, report it."""
    stop.taken = True
    try:
        await server.start()
    except OSError as error:
        raise port_failure(error, "this machine", port, f"the {what}", "--port or listenPort") from error
    try:
        out.line(
            {"event": "ready", "part": what, "address": server.address}, f"{what} listens at {server.address}"
        )
        await stop.wait()
        if not out.as_json:  # a program that reads JSON, for example `aerobee up`, does not press Ctrl-C
            out.note(f"stopping the {what}; press Ctrl-C again to terminate immediately")
    finally:
        await server.stop()
    out.line({"event": "stopped", "part": what}, f"{what} stopped cleanly")


def force_on_second_signal(stop: Stop, out: Output) -> None:
    """The second signal ends the process without draining."""

    def force() -> None:
        out.note("terminated; the store recovers at its next start", style="")
        os._exit(int(ExitCode.INTERRUPTED))

    stop.on_force = force


@contextlib.contextmanager
def stopping_with_stdin(stop: Stop, wanted: bool) -> Iterator[None]:
    """Stop when standard input ends. The parent process has the other end open, so this also works when it is killed."""
    if not wanted:
        yield
        return
    loop = asyncio.get_running_loop()
    descriptor = sys.stdin.fileno()

    def readable() -> None:
        if not os.read(descriptor, 4096):
            loop.remove_reader(descriptor)
            stop.set()

    loop.add_reader(descriptor, readable)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)


def set_log_level(name: str) -> None:
    """Set the level of Aerobee's loggers, unless --debug is on."""
    level = logging.getLevelNamesMapping().get(name.upper())
    if level is None:
        raise typer.BadParameter(f"{name!r} must be debug, info, warning or error", param_hint="--log-level")
    if logging.getLogger().level != logging.DEBUG:
        logging.getLogger("aerobee").setLevel(level)


def flags_of(*given: tuple[str, object, str]) -> dict[str, Setting]:
    return {key: Setting(str(value), flag) for key, value, flag in given if value is not None}


def write_config(out: Output, properties: dict[str, str]) -> None:
    if out.as_json:
        out.document(properties)
        return
    for key, value in sorted(properties.items()):
        sys.stdout.write(f"{key}={value}\n")
