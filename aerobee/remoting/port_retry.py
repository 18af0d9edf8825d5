"""Opens a port of a running server once another process has released it.

For a port without which a server starts: a connection of another process may have the port only for a moment, and without
another attempt the server would lack it until its next start.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable

from aerobee.clock import Clock, Timer

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 1.0
PAUSE_MAX_S = 30.0


class PortRetry:
    """Attempts at one port: after 1 s, 2 s, 4 s and so on, then every 30 s. Belongs to the event loop."""

    def __init__(
        self,
        clock: Clock,
        open_port: Callable[[], Awaitable[object]],
        *,
        port: int,
        purpose: str,
        advice: str,
    ) -> None:
        """`open_port` binds the port and raises OSError if it cannot. `purpose` completes "port 10912, ..."."""
        self._clock = clock
        self._open_port = open_port
        self._port = port
        self._purpose = purpose
        self._advice = advice
        self._pause_s = FIRST_PAUSE_S
        self._failure = ""
        self._timer: Timer | None = None
        self._attempt: asyncio.Task[None] | None = None

    @property
    def missing(self) -> str:
        """The port, its purpose, and why it is not bound; empty once it is, and after stop()."""
        return f"{self._port}, {self._purpose}: {self._failure}" if self._failure else ""

    def start(self, error: OSError) -> None:
        """Begin after a failed attempt, whose error this is."""
        self._failed(error)

    async def stop(self) -> None:
        """Make no further attempt. On return no attempt runs; what the last one opened belongs to the caller."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._attempt is not None:
            await asyncio.wait([self._attempt])
        if self._timer is not None:  # of that attempt
            self._timer.cancel()
        self._timer, self._failure = None, ""

    def _failed(self, error: OSError) -> None:
        # asyncio and RemotingServer put the address into the error's own text.
        failure = os.strerror(error.errno) if error.errno else str(error)
        if failure != self._failure:
            self._failure = failure
            log.warning(
                "port %d, %s, cannot be bound: %s; trying again (%s)",
                self._port,
                self._purpose,
                failure,
                self._advice,
            )
        self._timer = self._clock.call_later(self._pause_s, self._begin)
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)

    def _begin(self) -> None:
        self._timer = None
        self._attempt = asyncio.create_task(self._try(), name=f"bind-{self._port}")

    async def _try(self) -> None:
        try:
            await self._open_port()
        except OSError as error:
            self._failed(error)
        except Exception:
            # Boundary of the task: the server runs without this port.
            log.exception("port %d, %s, cannot be bound", self._port, self._purpose)
        else:
            self._failure = ""
            log.info("port %d, %s, is bound now", self._port, self._purpose)
        finally:
            self._attempt = None
