"""Reading and changing the settings of a running server that is no broker: a NameServer's (318, 319), a controller's (1009, 1010).

Both bodies are properties texts. The handler validates a whole change before it applies any key: a key that
is unknown, black-listed, or effective only at start refuses the request with a reason, and nothing changes. A
request without an applicable key is refused, too. Source: DefaultRequestProcessor, ControllerRequestProcessor
(RocketMQ).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from aerobee import config as settings
from aerobee.errors import ConfigError
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Handler, Peer


class ServerConfig(Protocol):
    """The part of a server's settings that is used here."""

    @property
    def config_store_path(self) -> str | None:
        """File of changed settings; None: nowhere."""

    @property
    def config_black_list(self) -> str:
        """Keys that no request may change, separated by semicolons."""


C = TypeVar("C", bound=ServerConfig)


class LiveConfig(Protocol[C]):
    """Settings that are replaced as a whole."""

    value: C


@dataclass(frozen=True, slots=True)
class SettingsRules:
    """Keys that may change, and request codes, of one kind of server."""

    update: RequestCode
    get: RequestCode
    has_effect: Callable[[str], bool]  # keys that may change at run time
    ignored: frozenset[str] = frozenset()  # unknown keys that are accepted
    idle: frozenset[str] = frozenset()  # accepted keys without effect; the reply says so


class SettingsCalls(Generic[C]):
    """The two requests. `save` (blocking) gets the file's path, the changes, and a text of all settings for a
    file that does not exist yet. If it raises StoreError, the reply carries the error and nothing changes.
    Both texts are without secrets.
    """

    def __init__(
        self,
        config: LiveConfig[C],
        rules: SettingsRules,
        *,
        save: Callable[[str, Mapping[str, str], str], None],
        log: logging.Logger,
    ) -> None:
        self._config = config
        self._rules = rules
        self._save = save
        self._log = log
        self._change = asyncio.Lock()

    def handlers(self) -> Mapping[int, Handler]:
        return {self._rules.update: self.update, self._rules.get: self.get}

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
        texts = {key: change.value for key, change in changes.items()}
        idle = sorted(changes.keys() & self._rules.idle)
        if changes.keys() <= self._rules.ignored:
            reason = f"without effect here: {', '.join(idle)}" if idle else "the request names no settings"
            return request.reply(ResponseCode.INVALID_PARAMETER, remark=f"nothing was changed: {reason}")
        async with self._change:
            current = self._config.value
            refused = self._refusal(current, changes)
            if refused is not None:
                code, remark = refused
                return request.reply(code, remark=remark)
            try:
                settings.check_wire_settings(texts)
                fresh = settings.changed(current, texts)
            except ConfigError as error:
                return request.reply(ResponseCode.INVALID_PARAMETER, remark=str(error))
            if fresh.config_store_path:
                await asyncio.to_thread(self._save, fresh.config_store_path, texts, config_text(fresh))
            self._config.value = fresh
        self._log.info("settings changed by %s: %s", peer.host_port, ", ".join(sorted(changes)))
        return request.reply(remark=f"without effect here: {', '.join(idle)}" if idle else None)

    def _refusal(self, config: C, changes: Mapping[str, settings.Setting]) -> tuple[ResponseCode, str] | None:
        black = [key for key in changes if key in config.config_black_list.split(";")]
        if black:
            return ResponseCode.NO_PERMISSION, f"Can not update config in black list: {', '.join(black)}"
        unknown = [
            entry
            for entry in settings.unknown_keys(changes, [type(config)])
            if entry.key not in self._rules.ignored
        ]
        if unknown:
            return ResponseCode.INVALID_PARAMETER, "; ".join(map(str, unknown))
        fixed = [key for key in changes if key not in self._rules.ignored and not self._rules.has_effect(key)]
        if fixed:
            return (
                ResponseCode.INVALID_PARAMETER,
                f"{', '.join(fixed)} has effect at start only; set it in the configuration file and restart",
            )
        return None


def config_text(config: ServerConfig) -> str:
    """All settings that have a value as `key=value` lines, sorted by key as RocketMQ's are."""
    return settings.properties_text(
        {key: text for key, text in settings.to_properties(config).items() if text}
    )
