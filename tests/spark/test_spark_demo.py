"""The short form of `make spark-demo`: the first events of the same file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COUNT = 20_000


def test_the_demo_ends_by_itself_with_everything_counted(tmp_path: Path):
    command = [sys.executable, str(ROOT / "scripts" / "spark-demo"), "--messages", str(COUNT)]
    where = ["--directory", str(tmp_path), "--data", str(ROOT / "spark-demo" / "data")]
    ran = subprocess.run([*command, *where], capture_output=True, text=True, timeout=900, check=False)
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]
    assert f"results of {COUNT:,} messages in" in ran.stdout
    page = (tmp_path / "lag.html").read_text()
    assert "flights-by-day" in page
