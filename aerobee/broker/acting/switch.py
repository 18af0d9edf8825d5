"""Creates the acting master, and loads its code, when enableSlaveActingMaster is first enabled.

That may be at the start or at run time. Until then 905 has no effect, and 906 returns the HA port.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from aerobee.broker.state.config import BrokerConfig, LiveConfig
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Handler, Peer, Reply

if TYPE_CHECKING:
    from aerobee.broker.acting.acting_master import ActingMaster


class ActingSwitch:
    """Creates the acting master on demand. Belongs to the event loop; start() once, stop() once. The acting master is
    never discarded once created: it checks the setting itself.
    """

    def __init__(self, *, live: LiveConfig, make: Callable[[], ActingMaster], ha_info: Handler) -> None:
        """`make` loads and creates the acting master. `ha_info` answers 906 without one."""
        self._make = make
        self._ha_info = ha_info
        self._has_started = False
        self._acting = make() if live.value.enable_slave_acting_master else None
        live.on_change(self._settings_changed)

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: self.min_broker_changed,
            RequestCode.EXCHANGE_BROKER_HA_INFO: self.ha_info,
        }

    async def come_back(self) -> bool:
        """As ActingMaster.come_back()."""
        return self._acting is not None and await self._acting.come_back()

    def start(self) -> None:
        """As ActingMaster.start(), now or when it is created."""
        self._has_started = True
        if self._acting is not None:
            self._acting.start()

    async def stop(self) -> None:
        """As ActingMaster.stop()."""
        self._has_started = False
        if self._acting is not None:
            await self._acting.stop()

    def min_broker_changed(self, peer: Peer, request: RemotingCommand) -> Reply:
        """905, as ActingMaster.min_broker_changed()."""
        if self._acting is not None:
            return self._acting.min_broker_changed(peer, request)
        return None if request.is_oneway else request.reply()

    def ha_info(self, peer: Peer, request: RemotingCommand) -> Reply | Coroutine[Any, Any, Reply]:
        """906, as ActingMaster.ha_info()."""
        return (self._ha_info if self._acting is None else self._acting.ha_info)(peer, request)

    def _settings_changed(self, config: BrokerConfig) -> None:
        if self._acting is None and config.enable_slave_acting_master:
            self._acting = self._make()
            if self._has_started:
                self._acting.start()
