"""A NameServer, broker, controller or console in a process of its own, below `aerobee up`: started, started again when it dies, drained.

The process ends with its standard input, so that none outlives the one that started it.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Sequence

import orjson

from aerobee.errors import AerobeeError
from aerobee.ops.terminal.failure import UnhealthyError
from aerobee.ops.terminal.output import Output

DRAIN_S = 20.0  # longest that one may take to drain before it is killed
PAUSE_S_MIN = 0.5  # before one that died is started again; doubled each time it does not stay up
PAUSE_S_MAX = 30.0
STAYS_UP_S = 60.0  # one that ran so long begins with the shortest pause again


class ServerProcess:
    """One server. `command` is `broker` or `nameserver`, `arguments` what follows it; `name` is what people are told.

    `inherited`: descriptors that the process takes over.
    """

    def __init__(
        self,
        name: str,
        command: str,
        arguments: Sequence[str],
        log_level: str,
        inherited: Sequence[int] = (),
    ) -> None:
        self.name = name
        self.address = ""
        self.pid = 0
        self._command = command
        self._arguments = tuple(arguments)
        self._log_level = log_level
        self._inherited = tuple(inherited)
        self._process: asyncio.subprocess.Process | None = None

    @property
    def kind(self) -> str:
        """What it is in what is said to programs: "nameserver" or, controllers too, "broker"."""
        return "nameserver" if self._command == "nameserver" else "broker"

    async def start(self) -> None:
        """Start it and wait until it listens. Raises UnhealthyError saying why it does not."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *(
                "-m",
                "aerobee.ops",
                self._command,
                "--json",
                "--stop-with-stdin",
                "--log-level",
                self._log_level,
            ),
            *self._arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            pass_fds=self._inherited,
            start_new_session=True,  # Ctrl-C reaches `up` only, which then drains its brokers in order
        )
        self.pid = self._process.pid
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        try:
            said = orjson.loads(line)
            if "error" in said:
                raise UnhealthyError(f"{self.name} does not start: {said['error']['message']}")
            self.address = str(said["address"])
        except (orjson.JSONDecodeError, KeyError) as error:
            raise UnhealthyError(f"{self.name} ended before it was ready; its log above says why") from error

    async def keep_up(self, out: Output) -> None:
        """For ever: when it dies, say so, start it again, and say that it is back."""
        pause_s = PAUSE_S_MIN
        while True:
            began = time.monotonic()
            assert self._process is not None
            how = await self.died()
            if time.monotonic() - began > STAYS_UP_S:
                pause_s = PAUSE_S_MIN
            _tell(out, "died", self, f"{self.name} ended {how}; it is started again in {pause_s:g} s")
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_S_MAX)
            try:
                await self.start()
            except AerobeeError as error:
                out.note(str(error), style="red")
                continue
            _tell(out, "back", self, f"{self.name} is back at {self.address}")

    async def died(self) -> str:
        """Wait until it has ended; returns how, as the end of a sentence."""
        assert self._process is not None
        return _how(await self._process.wait())

    def ask_to_end(self) -> None:
        """Let it drain; returns at once."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    async def ended(self) -> None:
        """Wait until it has drained; kill it when that takes too long."""
        if self._process is None:
            return
        try:
            async with asyncio.timeout(DRAIN_S):
                await self._process.wait()
        except TimeoutError:
            self.kill()
            await self._process.wait()

    def kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()


def _tell(out: Output, event: str, server: ServerProcess, sentence: str) -> None:
    if out.as_json:
        out.line({"event": event, server.kind: server.name, "pid": server.pid}, "")
    else:
        out.note(sentence, style="yellow")


def _how(code: int) -> str:
    if code >= 0:
        return f"with exit code {code}; its log above says why"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = str(-code)
    return f"by signal {name}"
