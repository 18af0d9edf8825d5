"""docs/permissions.md: every request that servers take, with the permission that it asks for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_what_running_servers_say_and_no_request_is_without_a_rule() -> None:
    script = ROOT / "scripts" / "permissions-table"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
