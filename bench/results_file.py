"""Files in bench/results: what was measured, when, on what, and by which command."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"


def write(name: str, results: Any) -> Path:
    """Write bench/results/NAME.json with the circumstances of the run; `results` is the tool's own."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    document = {
        "when": time.strftime("%Y-%m-%d"),
        "command": shlex.join(["python", f"bench/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "results": results,
    }
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path


def read(name: str) -> dict[str, Any] | None:
    """The document of a run, or None when there was none."""
    path = RESULTS / f"{name}.json"
    if not path.exists():
        return None
    document: dict[str, Any] = json.loads(path.read_text())
    return document
