"""A NameServer, broker, controller or console as a child process of `aerobee up`: start, restart after its death, drain.

The process ends when its standard input closes, so that it does not outlive its parent.
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

DRAIN_S = 20.0  # longest time to drain before the process is killed
PAUSE_S_MIN = 0.5  # pause before a restart; doubled each time the process does not stay up
PAUSE_S_MAX = 30.0
STAYS_UP_S = 60.0  # after this running time the pause is PAUSE_S_MIN again


class ServerProcess:
    """One server process. `command` is its command (`broker`, `nameserver`, …), `arguments` follow it; `name` is for messages.

    `inherited`: descriptors that the process inherits.
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
        """The key of the server's name in JSON events: "nameserver", else "broker" (also for controllers)."""
        return "nameserver" if self._command == "nameserver" else "broker"

    async def start(self) -> None:
        """Start the process and wait until it listens. Raises UnhealthyError with the reason when it does not."""
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
                raise UnhealthyError(f"{self.name} failed to start: {said['error']['message']}")
            self.address = str(said["address"])
        except (orjson.JSONDecodeError, KeyError) as error:
            raise UnhealthyError(f"{self.name} ended before it was ready; see its log above") from error

    async def keep_up(self, out: Output) -> None:
        """Loop: when the process dies, report it, restart it, and report that it is back."""
        pause_s = PAUSE_S_MIN
        while True:
            began = time.monotonic()
            assert self._process is not None
            how = await self.died()
            if time.monotonic() - began > STAYS_UP_S:
                pause_s = PAUSE_S_MIN
            _report(out, "died", self, f"{self.name} ended {how}; restarting in {pause_s:g} s")
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_S_MAX)
            try:
                await self.start()
            except AerobeeError as error:
                out.note(str(error), style="red")
                continue
            _report(out, "back", self, f"{self.name} is back at {self.address}")

    async def died(self) -> str:
        """Wait until the process has ended; return how, as the end of a sentence."""
        assert self._process is not None
        return _how(await self._process.wait())

    def ask_to_end(self) -> None:
        """Make the process drain, without waiting for its end."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    async def ended(self) -> None:
        """Wait until the process has drained; kill it after DRAIN_S."""
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


def _report(out: Output, event: str, server: ServerProcess, sentence: str) -> None:
    if out.as_json:
        out.line({"event": event, server.kind: server.name, "pid": server.pid}, "")
    else:
        out.note(sentence, style="yellow")


def _how(code: int) -> str:
    if code >= 0:
        return f"with exit code {code} (see its log above)"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = str(-code)
    return f"by signal {name}"
