"""The access control of a broker: opened with its tables, checked before its handlers, closed at the end."""

from __future__ import annotations

from aerobee.access.config import AccessConfig
from aerobee.access.gate import Gate
from aerobee.access.no_users import NoUsers
from aerobee.access.opening import RELOAD_S as RELOAD_S
from aerobee.access.opening import Access, Calls, open_access, say_what_is_open
from aerobee.broker.state.config import LiveConfig
from aerobee.clock import Clock
from aerobee.host_port import is_loopback
from aerobee.remoting.peer import Peer


class BrokerAccess:
    """Without a configuration nothing is checked or refused."""

    def __init__(
        self,
        config: AccessConfig | None,
        *,
        live: LiveConfig,
        directory: str,
        settings_path: str | None,
        clock: Clock,
    ) -> None:
        self._config = config
        self._live = live
        self._directory = directory
        self._settings_path = settings_path
        self._clock = clock
        self._access = Access(Gate(keeper=None, admin_open=True), NoUsers())

    @property
    def gate(self) -> Gate:
        """The gate before the handlers."""
        return self._access.gate

    @property
    def calls(self) -> Calls:
        """Handlers of the requests about users and permissions."""
        return self._access.calls

    @property
    def is_closed(self) -> bool:
        """Whether every request must authenticate, so that none may bypass the gate."""
        return self._access.gate.is_closed

    @property
    def reloads(self) -> bool:
        """Whether there are files to check for changes."""
        return self._access.reload is not None

    def open(self) -> None:
        """Read users or accounts. Raises ConfigError, StoreError."""
        if self._config is None:
            return
        open_listeners = self._config.open_listeners

        def exempt(peer: Peer) -> bool:
            return peer.listener in open_listeners

        self._access = open_access(
            self._config,
            directory=self._directory,
            settings_path=self._settings_path,
            cluster=lambda: self._live.value.broker_cluster_name,
            now_ms=self._clock.now_ms,
            exempt=exempt,
        )
        bound = self._live.value.bound_listeners
        say_what_is_open(self._config, beyond_loopback=not all(is_loopback(each.host) for each in bound))

    def reload(self) -> None:
        """Check the account files for changes; runs in a thread."""
        if self._access.reload is not None:
            self._access.reload()

    def close(self) -> None:
        """Close files."""
        self._access.close()
