"""Interface of features: kinds of messages or of consumption that extend the broker.

features.py makes them; broker.py calls them at the right time:

    load()        the store is open, nothing is served yet
    handlers() and put_hook are read once, then
    start()       the ports are open; only at a broker that takes messages (a master)
    follow()      at a broker that copies a master's log, from its start or its resignation on
    take_over()   that broker becomes master; start() follows (leading.py)
    copy()        while it follows a known master
    log_cut()     the end of a slave's log was cut off
    save()        blocking: at the stop, when nothing is served any more
    stop()        before the store closes, also for a broker that is killed: cancel timers and tasks, write nothing
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from aerobee.remoting.peer import Handler
from aerobee.store.log.stored_message import StoredMessage


class PutHook(NamedTuple):
    """Rewrites, before they are stored, the messages that have one of the properties `names`.

    `form` gets a checked message and its properties, decoded, and returns what to store instead; one that changes
    the properties returns a message with the new text. Raises RemoteError to refuse.
    """

    names: frozenset[str]
    form: Callable[[StoredMessage, dict[str, str]], StoredMessage]


class Feature:
    """Base of all features. A feature overrides the methods that it needs."""

    name = ""
    put_hook: PutHook | None = None
    needs: tuple[str, ...] = ()  # names of the features that this one needs to serve requests
    # Whether the put hook's messages are stored while the feature begins at a new master: they wait in the log anyway.
    accepts_early = False
    # Requests of handlers() that are answered also by a master at which the feature could not start.
    always_served: frozenset[int] = frozenset()

    def handlers(self) -> Mapping[int, Handler]:
        """Request code to handler."""
        return {}

    def load(self) -> None:
        """Read config files. Raises ConfigError or StoreError: the broker does not start then."""

    def start(self) -> None:
        """Begin with timers and tasks, in the broker's event loop."""

    async def take_over(self) -> None:
        """This broker becomes master at run time: reread the log and the files, because another broker was master
        meanwhile. start() follows; until then the broker refuses requests of the feature.

        Reads what takes long off the event loop, or in pieces. May be cancelled, and is called again after it failed. Raises
        AerobeeError, OSError.
        """

    def follow(self) -> None:
        """This broker copies a master's log: keep up with it where that makes take_over() short. stop() ends it."""

    async def copy(self, master: str, is_following: Callable[[], bool]) -> None:
        """Copy the feature's data that is neither in a table nor in the log from the broker at `master`, until
        cancelled. Data that states an end of the master's log is valid here once this log has reached that end, and
        while is_following(), that is, while this log is a prefix of the master's.
        """

    def log_cut(self, log_offset: int) -> None:
        """The log was cut at `log_offset`: drop state from later records."""

    def resign(self) -> None:
        """This broker is no longer master: stop, and let save() write no stale state. follow() comes next."""
        self.stop()

    def stop(self) -> None:
        """Cancel timers and tasks. May be called without start()."""

    def save(self) -> None:
        """Write config files, blocking. Raises AerobeeError, which is logged."""

    def close(self) -> None:
        """Close files, as the very last thing, also of a broker that is killed; nothing is written any more."""

    def runtime_info(self) -> Mapping[str, str]:
        """Keys to show in GET_BROKER_RUNTIME_INFO (28)."""
        return {}
