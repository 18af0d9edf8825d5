"""UPDATE_NAMESRV_CONFIG and GET_NAMESRV_CONFIG. Source: DefaultRequestProcessor (RocketMQ).

Both bodies are properties texts. A change is checked whole before any of it is taken: a key that is unknown, that is
black-listed, or that has effect at start only is refused with a reason, and nothing changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from aerobee import config as settings
from aerobee.errors import ConfigError
from aerobee.nameserver.config import (
    IGNORED_KEYS,
    START_ONLY_KEYS,
    WITHOUT_EFFECT_KEYS,
    LiveNameServerConfig,
    NameServerConfig,
)
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Handler, Peer
from aerobee.store.disk import Disk
from aerobee.store.json_file import save_config_file

log = logging.getLogger("aerobee.nameserver")


class ConfigCalls:
    """Reading and changing the settings of a running NameServer."""

    def __init__(self, config: LiveNameServerConfig, disk: Disk) -> None:
        self._config = config
        self._disk = disk
        self._change = asyncio.Lock()

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.UPDATE_NAMESRV_CONFIG: self.update,
            RequestCode.GET_NAMESRV_CONFIG: self.get,
        }

    def get(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        return request.reply(body=config_text(self._config.value).encode())

    async def update(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        try:
            text = request.body.decode("utf-8")
        except UnicodeDecodeError as error:
            return request.reply(
                ResponseCode.INVALID_PARAMETER, remark=f"byte {error.start} of the settings is not UTF-8"
            )
        changes = settings.parse_properties(text, "update")
        async with self._change:
            current = self._config.value
            refused = _refusal(current, changes)
            if refused is not None:
                code, remark = refused
                return request.reply(code, remark=remark)
            try:
                settings.check_wire_settings({key: change.value for key, change in changes.items()})
                fresh = settings.changed(current, {key: change.value for key, change in changes.items()})
            except ConfigError as error:
                return request.reply(ResponseCode.INVALID_PARAMETER, remark=str(error))
            if fresh.config_store_path:
                # A StoreError becomes the answer, and the change is not made.
                text = config_text(fresh)
                await asyncio.to_thread(save_config_file, self._disk, fresh.config_store_path, text.encode())
            self._config.value = fresh
        log.info("settings changed by %s: %s", peer.host_port, ", ".join(sorted(changes)))
        idle = sorted(changes.keys() & (IGNORED_KEYS | WITHOUT_EFFECT_KEYS.keys()))
        return request.reply(remark=f"without effect here: {', '.join(idle)}" if idle else None)


def config_text(config: NameServerConfig) -> str:
    """All settings that have a value as `key=value` lines, sorted by key as RocketMQ's are."""
    return settings.properties_text(
        {key: text for key, text in settings.to_properties(config).items() if text}
    )


def _refusal(
    config: NameServerConfig, changes: Mapping[str, settings.Setting]
) -> tuple[ResponseCode, str] | None:
    black = [key for key in changes if key in config.config_black_list.split(";")]
    if black:
        return ResponseCode.NO_PERMISSION, f"Can not update config in black list: {', '.join(black)}"
    fixed = [key for key in changes if key in START_ONLY_KEYS]
    if fixed:
        return (
            ResponseCode.INVALID_PARAMETER,
            f"{', '.join(fixed)} has effect at start only; set it in the configuration file and restart",
        )
    unknown = [
        str(entry)
        for entry in settings.unknown_keys(changes, [NameServerConfig])
        if entry.key not in IGNORED_KEYS
    ]
    return (ResponseCode.INVALID_PARAMETER, "; ".join(unknown)) if unknown else None
