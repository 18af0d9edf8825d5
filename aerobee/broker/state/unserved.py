"""Features that a master cannot serve now, with the reasons; all refusals of such features read this object. Belongs to
the event loop.

A feature is unserved from the moment at which the broker becomes master until the feature has started (leading.py). The
broker refuses the feature's messages with SERVICE_NOT_AVAILABLE, after which RocketMQ's producers retry. Other requests
wait a moment for a starting feature, and are refused with the same code when it takes longer or fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from aerobee.errors import RemoteError
from aerobee.ordered_set import OrderedSet
from aerobee.remoting.codes import ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Handler, Peer, Reply

STARTING = "it has just become master and reads what its log says"
WAIT_S = 2.0  # less than any client's time-out
WAITING_MAX = 10_000  # requests; more are refused


class UnservedKinds:
    """The unserved features. `reasons` is empty at a slave, and at a master whose features all run."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}  # name of the feature -> a clause without a full stop
        self.failed_count = 0  # attempts to start a feature that failed
        # In the order of their arrival, in which they are served.
        self._waiting: OrderedSet[asyncio.Future[None]] = OrderedSet()

    def put(self, names: Iterable[str], reason: str) -> None:
        """Mark features as unserved, or change their reasons."""
        self.reasons.update(dict.fromkeys(names, reason))
        self._wake()

    def take(self, name: str) -> str:
        """The feature is served. Returns why it was not; "" when it was."""
        reason = self.reasons.pop(name, "")
        self._wake()
        return reason

    def clear(self) -> None:
        """This broker serves nothing as a master any more: nothing is missing."""
        self.reasons.clear()
        self._wake()

    def _wake(self) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    def text(self) -> str:
        """For figures: "NAME: REASON; NAME: REASON"; empty when everything is served."""
        return "; ".join(f"{name}: {reason}" for name, reason in self.reasons.items())

    def has(self, name: str) -> bool:
        """Whether the feature is not served."""
        return name in self.reasons

    def refusal(self, name: str) -> RemoteError | None:
        """The refusal of a request that needs the feature; None when it is served."""
        if not self.reasons or name not in self.reasons:
            return None
        return RemoteError(
            ResponseCode.SERVICE_NOT_AVAILABLE,
            f"service not available now. this broker cannot serve {name} yet: {self.reasons[name]}",
        )

    def check(self, name: str, *, accepts_early: bool) -> None:
        """Raise RemoteError for a message that needs the feature. `accepts_early`: not while it only begins."""
        reason = self.reasons.get(name) if self.reasons else None
        if reason is not None and not (accepts_early and reason == STARTING):
            refusal = self.refusal(name)
            assert refusal is not None
            raise refusal

    def guard(
        self, name: str, handlers: Mapping[int, Handler], always: frozenset[int] = frozenset()
    ) -> dict[int, Handler]:
        """The same handlers, which refuse while the feature is not served; those of `always` answer."""
        return {
            code: handler if code in always else self._guarded(name, handler)
            for code, handler in handlers.items()
        }

    def _guarded(self, name: str, handler: Handler) -> Handler:
        reasons: Mapping[str, str] = self.reasons

        def guarded(peer: Peer, request: RemotingCommand) -> Reply | Coroutine[Any, Any, Reply]:
            if not reasons or name not in reasons:
                return handler(peer, request)
            return self._serve_deferred(name, handler, peer, request)

        return guarded

    async def _serve_deferred(
        self, name: str, handler: Handler, peer: Peer, request: RemotingCommand
    ) -> Reply:
        """Serve it when the feature has started, or refuse."""
        try:
            await self.when_served(name)
        except RemoteError as refusal:
            return None if request.is_oneway else request.reply(refusal.code, remark=refusal.remark)
        reply = handler(peer, request)
        return await reply if isinstance(reply, Coroutine) else reply

    async def when_served(self, name: str) -> None:
        """Return when the feature is served. Raises RemoteError when it fails to start, or takes longer than WAIT_S."""
        try:
            async with asyncio.timeout(WAIT_S):
                while self.reasons.get(name) == STARTING and len(self._waiting) < WAITING_MAX:
                    await self._changed()
        except TimeoutError:
            pass  # the refusal below says why
        refusal = self.refusal(name)
        if refusal is not None:
            raise refusal

    async def _changed(self) -> None:
        """Return when a reason has changed."""
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        try:
            await waiting
        finally:
            self._waiting.discard(waiting)

    def served(self, name: str) -> Callable[[], bool]:
        """A function that says whether the feature is served."""
        reasons: Mapping[str, str] = self.reasons
        return lambda: not reasons or name not in reasons
