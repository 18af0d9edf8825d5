"""UPDATE_CONTROLLER_CONFIG 1009 and GET_CONTROLLER_CONFIG 1010: change and read the settings of one controller; names
those that may change (remoting/settings_calls.py).
"""

from __future__ import annotations

import logging
from functools import partial

from aerobee.ha.controller.config import CHANGEABLE_KEYS, ControllerConfig, LiveControllerConfig
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.settings_calls import SettingsCalls, SettingsRules
from aerobee.store.files.disk import Disk
from aerobee.store.files.json_file import save_settings_file

RULES = SettingsRules(
    update=RequestCode.UPDATE_CONTROLLER_CONFIG,
    get=RequestCode.GET_CONTROLLER_CONFIG,
    has_effect=lambda key: key in CHANGEABLE_KEYS,
)


def config_calls(config: LiveControllerConfig, disk: Disk) -> SettingsCalls[ControllerConfig]:
    """The two requests for a running controller."""
    return SettingsCalls(
        config, RULES, save=partial(save_settings_file, disk), log=logging.getLogger("aerobee.controller")
    )
