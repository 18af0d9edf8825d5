"""UPDATE_NAMESRV_CONFIG 318 and GET_NAMESRV_CONFIG 319: which settings of a NameServer may change (remoting/settings_calls.py)."""

from __future__ import annotations

import logging
from functools import partial

from aerobee.nameserver.config import (
    IGNORED_KEYS,
    START_ONLY_KEYS,
    WITHOUT_EFFECT_KEYS,
    LiveNameServerConfig,
    NameServerConfig,
)
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.settings_calls import SettingsCalls, SettingsRules
from aerobee.store.files.disk import Disk
from aerobee.store.files.json_file import save_settings_file

RULES = SettingsRules(
    update=RequestCode.UPDATE_NAMESRV_CONFIG,
    get=RequestCode.GET_NAMESRV_CONFIG,
    has_effect=lambda key: key not in START_ONLY_KEYS,
    ignored=IGNORED_KEYS,
    idle=IGNORED_KEYS | WITHOUT_EFFECT_KEYS.keys(),
)


def config_calls(config: LiveNameServerConfig, disk: Disk) -> SettingsCalls[NameServerConfig]:
    """The two requests for a running NameServer."""
    return SettingsCalls(
        config, RULES, save=partial(save_settings_file, disk), log=logging.getLogger("aerobee.nameserver")
    )
