"""UPDATE_CONTROLLER_CONFIG 1009 and GET_CONTROLLER_CONFIG 1010. Source: ControllerRequestProcessor (RocketMQ).

Both bodies are properties texts. A change is checked whole before any of it is taken: a key that is unknown, black-listed, or
that has effect at start only is refused with a reason, and nothing changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from aerobee import config as settings
from aerobee.errors import ConfigError
from aerobee.ha.quorum.config import CHANGEABLE_KEYS, ControllerConfig, LiveControllerConfig
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Handler, Peer
from aerobee.store.disk import Disk
from aerobee.store.json_file import save_config_file

log = logging.getLogger("aerobee.controller")


class ControllerConfigCalls:
    """Reading and changing the settings of a running controller. Each controller has its own."""

    def __init__(self, config: LiveControllerConfig, disk: Disk) -> None:
        self._config = config
        self._disk = disk
        self._change = asyncio.Lock()

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.UPDATE_CONTROLLER_CONFIG: self.update,
            RequestCode.GET_CONTROLLER_CONFIG: self.get,
        }

    def get(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        return request.reply(body=config_text(self._config.value).encode())

    async def update(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        try:
            changes = settings.parse_properties(request.body.decode("utf-8"), "update")
        except UnicodeDecodeError as error:
            return request.reply(
                ResponseCode.INVALID_PARAMETER, remark=f"byte {error.start} of the settings is not UTF-8"
            )
        texts = {key: change.value for key, change in changes.items()}
        async with self._change:
            current = self._config.value
            refused = _refusal(current, changes)
            if refused is not None:
                code, remark = refused
                return request.reply(code, remark=remark)
            try:
                settings.check_wire_settings(texts)
                fresh = settings.changed(current, texts)
            except ConfigError as error:
                return request.reply(ResponseCode.INVALID_PARAMETER, remark=str(error))
            if fresh.config_store_path:
                # A StoreError becomes the answer, and the change is not made.
                text = config_text(fresh).encode()
                await asyncio.to_thread(save_config_file, self._disk, fresh.config_store_path, text)
            self._config.value = fresh
        log.info("settings changed by %s: %s", peer.host_port, ", ".join(sorted(changes)))
        return request.reply()


def config_text(config: ControllerConfig) -> str:
    """All settings that have a value as `key=value` lines, sorted by key as RocketMQ's are."""
    return settings.properties_text(
        {key: text for key, text in settings.to_properties(config).items() if text}
    )


def _refusal(
    config: ControllerConfig, changes: Mapping[str, settings.Setting]
) -> tuple[ResponseCode, str] | None:
    black = [key for key in changes if key in config.config_black_list.split(";")]
    if black:
        return ResponseCode.NO_PERMISSION, f"Can not update config in black list: {', '.join(black)}"
    unknown = [str(entry) for entry in settings.unknown_keys(changes, [ControllerConfig])]
    if unknown:
        return ResponseCode.INVALID_PARAMETER, "; ".join(unknown)
    fixed = [key for key in changes if key not in CHANGEABLE_KEYS]
    if fixed:
        return (
            ResponseCode.INVALID_PARAMETER,
            f"{', '.join(fixed)} has effect at start only; set it in the configuration file and restart",
        )
    return None
