"""docs/mqadmin.md has every verb of RocketMQ 5.5.0's mqadmin, with its options."""

from __future__ import annotations

import json
import subprocess

from tests.interop.rocketmq import CLASS_PATH, JAVA, ROOT


def test_the_list_of_verbs_is_rocketmqs() -> None:
    told = subprocess.run(
        [*JAVA, "-cp", CLASS_PATH, "VerbsList"], capture_output=True, timeout=120, check=True
    )
    theirs = json.loads(told.stdout[told.stdout.index(b"{") :])
    ours = json.loads((ROOT / "scripts" / "rocketmq-5.5.0-mqadmin.json").read_text())
    assert {verb: facts["options"] for verb, facts in theirs.items()} == {
        verb: facts["options"] for verb, facts in ours.items()
    }
