"""The console of `aerobee up`: its port is open from the start, its process starts with the first connection.

An unused console costs only a socket. The console runs in a separate process, so that a page of thousands of topics does not
block a broker's event loop. The process inherits the listening socket, in whose backlog the first connection waits. If the
process ends before `up` does, the next connection starts it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from importlib.util import find_spec

from aerobee.errors import AerobeeError
from aerobee.host_port import join_address
from aerobee.ops.servers.listening import port_failure
from aerobee.ops.servers.server_process import PAUSE_S_MAX, PAUSE_S_MIN, ServerProcess
from aerobee.ops.terminal.output import Output

HOST = "127.0.0.1"  # a console for other machines needs users, which only `aerobee console` accepts
PORT = 8_080
PORTS_TRIED = 10  # ports from PORT on, without --console
BACKLOG = 128


class UpConsole:
    """Created by open_console(); run serve() until it is cancelled, then close()."""

    def __init__(self, listener: socket.socket, notice: str) -> None:
        self.notice = notice
        self.port = int(listener.getsockname()[1])
        self._listener = listener
        self._process: ServerProcess | None = None

    @property
    def url(self) -> str:
        return f"http://{join_address(HOST, self.port)}/"

    async def serve(self, nameserver: str, log_level: str, out: Output) -> None:
        """Loop: wait for a connection, start the console, wait until it ends. Print failures; brokers are not affected."""
        number = self._listener.fileno()
        arguments = ("--listen-descriptor", str(number), "--nameserver", nameserver)
        pause_s = PAUSE_S_MIN
        while True:
            await _readable(self._listener)
            process = self._process = ServerProcess(
                "the console", "console", arguments, log_level, inherited=(number,)
            )
            try:
                await process.start()
                pause_s = PAUSE_S_MIN
            except AerobeeError as error:
                out.note(str(error), style="red")
            how = await process.died()
            out.note(f"the console ended {how}; the next browser connection starts it again", style="yellow")
            await asyncio.sleep(pause_s)  # a waiting browser reconnects immediately
            pause_s = min(pause_s * 2, PAUSE_S_MAX)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    async def close(self) -> None:
        """End the process and close the port."""
        self._listener.close()
        if self._process is not None:
            self._process.ask_to_end()
            await self._process.ended()


def open_console(port: int | None) -> UpConsole | str:
    """Listen at 127.0.0.1:`port`, or, for None, at the first free port from PORT on.

    Returns the reason as text if a package is missing, or, for None, if no port is free. Raises PortTaken if `port` is in use.
    """
    if find_spec("aiohttp") is None:
        return "not started: it needs aiohttp, pip install 'aerobee[metrics]'"
    if port is not None:
        try:
            return UpConsole(_listen(port), "")
        except OSError as error:
            raise port_failure(error, HOST, port, "the console", "--console") from error
    for tried in range(PORT, PORT + PORTS_TRIED):
        try:
            listener = _listen(tried)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                return f"not started: {error.strerror or error}"
            continue
        return UpConsole(listener, "" if tried == PORT else f"port {PORT} is in use")
    return f"not started: ports {PORT} to {PORT + PORTS_TRIED - 1} are in use; choose another with --console"


def _listen(port: int) -> socket.socket:
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        listener.bind((HOST, port))
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


async def _readable(listener: socket.socket) -> None:
    """Return when a connection is ready to be accepted, without accepting it."""
    loop = asyncio.get_running_loop()
    connected = asyncio.Event()
    loop.add_reader(listener, connected.set)
    try:
        await connected.wait()
    finally:
        with contextlib.suppress(OSError):  # the listener was closed meanwhile
            loop.remove_reader(listener)
