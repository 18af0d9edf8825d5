"""The list of RocketMQ's settings behind docs/settings.md is what its classes say."""

from __future__ import annotations

import json
import subprocess

from tests.interop.rocketmq import CLASS_PATH, JAVA, ROOT

# Defaults that depend on the machine: its name, its directories, its processors.
OF_MACHINE = ("Path", "ThreadPoolNums", "Threads", "Nums", "home", "Home", "IP", "Name", "ThreadNum", "Size")


def test_the_list_of_settings_is_rocketmqs() -> None:
    told = subprocess.run(
        [*JAVA, "-cp", CLASS_PATH, "SettingsList"], capture_output=True, timeout=120, check=True
    )
    theirs = json.loads(told.stdout[told.stdout.index(b"{") :])
    ours = json.loads((ROOT / "scripts" / "rocketmq-5.5.0-settings.json").read_text())
    assert {name: sorted(keys) for name, keys in theirs.items()} == {
        name: sorted(keys) for name, keys in ours.items()
    }
    for name, keys in ours.items():
        steady = {
            key: value for key, value in keys.items() if not key.endswith(OF_MACHINE) and "Path" not in key
        }
        assert {key: theirs[name][key] for key in steady} == steady
