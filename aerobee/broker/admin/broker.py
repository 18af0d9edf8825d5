"""Requests about the broker itself: 25, 26, 28, 306, 329.

Source: AdminBrokerProcessor (RocketMQ). Run-time changes replace whole frozen configs. A key that cannot change at run
time is refused and named in the remark; the others take effect. Unknown keys are ignored, as in RocketMQ, and named in
the remark. A request that contains a secret is refused completely, and no value is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping

from aerobee.broker.admin.runtime_info import RuntimeInfo
from aerobee.broker.state.background import shield
from aerobee.broker.state.config import BrokerConfig, LiveConfig
from aerobee.broker.state.identity import BrokerIdentity
from aerobee.clock import Clock
from aerobee.config import (
    changed,
    check_wire_settings,
    known_keys,
    parse_properties,
    properties_text,
    secret_keys,
    to_properties,
)
from aerobee.errors import ConfigError, StoreError
from aerobee.metrics_config import METRICS_START_KEYS
from aerobee.remoting.body.data_version import DataVersion
from aerobee.remoting.body.kv_table import KVTable
from aerobee.remoting.codes import LanguageCode, RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Handler, Peer
from aerobee.store.files.config import StoreConfig
from aerobee.store.message_store import MessageStore

log = logging.getLogger(__name__)

# Settings that are applied only at the start: sockets, files, the broker's name.
RESTART_KEYS = frozenset(
    {
        "enableControllerMode",
        "controllerAddr",
        "advertisedListeners", "bindAddress", "brokerClusterName", "brokerTopicEnable", "clusterTopicEnable",
        "enableCalcFilterBitMap", "enablePopBufferMerge", "expectConsumerNumUseFilter", "maxErrorRateOfBloomFilter",
        "msgTraceTopicName", "traceTopicEnable", "transactionOpBatchInterval", "transactionOpMsgMaxSize", "brokerIP1", "brokerIP2", "brokerId",
        "brokerName", "brokerRole", "defaultTopicQueueNums", "enableVipListener", "listenPort",
        "listeners", *METRICS_START_KEYS, "namesrvAddr", "regionId", "serverChannelMaxIdleTimeSeconds",
        "frameReceiveTimeoutMillis", "proxyProtocolFrom", "tlsHandshakeTimeoutMillis",
    }
)  # fmt: skip
LIVE_STORE_KEYS = frozenset(
    {
        "accessMessageInMemoryMaxRatio", "appendTopicForTimerDeleteKey", "cleanFileForciblyEnable", "defaultQueryMaxNum",
        "deleteFileBatchMax", "deleteWhen", "diskMaxUsedSpaceRatio", "diskSpaceCleanForciblyRatio",
        "diskSpaceWarningLevelRatio", "fileReservedTime", "flushCommitLogLeastPages",
        "flushCommitLogThoroughInterval", "flushIntervalCommitLog", "inSyncReplicas", "maxFilterMessageSize",
        "maxMessageSize", "maxMsgsNumBatch", "maxTransferBytesOnMessageInDisk",
        "maxTransferBytesOnMessageInMemory", "maxTransferCountOnMessageInDisk",
        "maxTransferCountOnMessageInMemory", "minInSyncReplicas", "slaveTimeout",
    }
)  # fmt: skip
SECRET_KEYS = secret_keys([BrokerConfig, StoreConfig])
CONFIG_BYTES_MAX = 1024 * 1024


class AdminBrokerCalls:
    """Answers 25, 26, 28, 306 and 329."""

    def __init__(
        self,
        *,
        live: LiveConfig,
        store: MessageStore,
        info: RuntimeInfo,
        identity: BrokerIdentity,
        clock: Clock,
        other_settings: Callable[[], Mapping[str, str]] = dict,
        save: Callable[[Mapping[str, str]], Awaitable[None]] | None = None,
    ) -> None:
        """`other_settings` returns key -> text of settings that belong neither to the broker nor to the store.

        `save` keeps changes for the next start (raises StoreError), None where there is no configuration file.
        """
        self._live = live
        self._store = store
        self._info = info
        self._identity = identity
        self._clock = clock
        self._other_settings = other_settings
        self._save = save
        self._version = DataVersion(timestamp=clock.now_ms())

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.UPDATE_BROKER_CONFIG: self.update_config,
            RequestCode.GET_BROKER_CONFIG: self.config,
            RequestCode.GET_BROKER_RUNTIME_INFO: self.runtime_info,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self.delete_expired,
            RequestCode.DELETE_EXPIRED_COMMITLOG: self.delete_expired,
        }

    def runtime_info(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """28: counters, rates and fill levels as texts. Only Aerobee's clients receive the keys that RocketMQ lacks."""
        table = self._info.table(with_extra=request.language == LanguageCode.PYTHON)
        return request.reply(body=KVTable(table).encode())

    def config(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """26: all settings in force as a properties text, sorted by key."""
        settings = {**self._other_settings(), **to_properties(self._store.config, self._live.value)}
        body = properties_text(settings).encode()
        return request.reply(ext={"version": self._version.encode().decode()}, body=body)

    async def update_config(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """25: change settings given as a properties text. Nothing changes unless all values are valid. If no key can be
        changed, the reply is an error with the reason.

        On return the settings are in effect, and in the broker's configuration file if it was started with one. If the
        file cannot be written, the reply is an error that says so, and the settings are in effect until a restart.
        """
        if len(request.body) > CONFIG_BYTES_MAX:
            return request.reply(
                ResponseCode.INVALID_PARAMETER,
                remark=f"the settings take {len(request.body)} bytes, at most {CONFIG_BYTES_MAX} are read",
            )
        try:
            text = request.body.decode("utf-8")
        except UnicodeDecodeError as error:
            return request.reply(
                ResponseCode.SYSTEM_ERROR, remark=f"the settings are not UTF-8 from byte {error.start} on"
            )
        changes = {
            key: setting.value for key, setting in parse_properties(text, "updateBrokerConfig").items()
        }
        black_list = {key.strip() for key in self._live.value.config_black_list.split(";")}
        forbidden = sorted(black_list & changes.keys())
        if forbidden:
            return request.reply(
                ResponseCode.NO_PERMISSION,
                remark=f"Can not update config in black list: {', '.join(forbidden)} (configBlackList)",
            )
        secrets = sorted(SECRET_KEYS & changes.keys())
        if secrets:
            return request.reply(
                ResponseCode.INVALID_PARAMETER,
                remark=f"nothing was changed: {', '.join(secrets)} is a secret, set it in the configuration file and restart",
            )
        try:
            check_wire_settings(changes)
            taken, remark = self._apply(changes)
        except ConfigError as error:
            return request.reply(ResponseCode.INVALID_PARAMETER, remark=str(error))
        if not taken:
            reason = remark or "the request names no settings"
            return request.reply(ResponseCode.INVALID_PARAMETER, remark=f"nothing was changed: {reason}")
        if self._save is not None:
            try:
                await self._save(taken)
            except StoreError as error:
                log.error(
                    "settings %s from %s are in effect, but not in the file: %s",
                    ", ".join(sorted(taken)),
                    peer.address,
                    error,
                )
                return request.reply(
                    ResponseCode.SYSTEM_ERROR,
                    remark=(
                        f"{', '.join(sorted(taken))}: in effect until a restart, but not saved "
                        f"for the next start: {error}"
                    ),
                )
        log.info("settings were changed by %s: %s", peer.address, ", ".join(sorted(taken)))
        if remark is not None:
            log.info("settings from %s were not changed: %s", peer.address, remark)
        return request.reply(remark=remark)

    def _apply(self, changes: Mapping[str, str]) -> tuple[dict[str, str], str | None]:
        """Apply the settings that can change; return them, and the reason for the others or None. Raises ConfigError
        and changes nothing."""
        broker_keys, store_keys = set(known_keys([BrokerConfig])), set(known_keys([StoreConfig]))
        broker = {k: v for k, v in changes.items() if k in broker_keys and k not in RESTART_KEYS}
        store = {k: v for k, v in changes.items() if k in LIVE_STORE_KEYS}
        settled = {k for k in changes if k in broker_keys | store_keys} - broker.keys() - store.keys()
        unknown = changes.keys() - broker_keys - store_keys
        new_store = changed(self._store.config, store, "updateBrokerConfig")
        # Settings that need a restart are checked as well: an invalid value is refused now.
        changed(
            self._live.value, {k: v for k, v in changes.items() if k in broker_keys}, "updateBrokerConfig"
        )
        if broker:
            self._live.update(broker, "updateBrokerConfig")
        if store:
            self._store.reconfigure(new_store)
        if broker or store:
            self._version = self._version.next(self._clock.now_ms())
        remarks = []
        if settled:
            remarks.append(
                f"not changed, needs the configuration file and a restart: {', '.join(sorted(settled))}"
            )
        if unknown:
            remarks.append(f"ignored, this broker has no such settings: {', '.join(sorted(unknown))}")
        return {**broker, **store}, "; ".join(remarks) or None

    async def delete_expired(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """306 and 329: run retention now; queue files are deleted together with the log files that they point into."""
        removed = await shield(self._store.delete_expired(manual=True))
        log.info("retention was started by %s: %d files removed", peer.address, removed)
        return request.reply()
