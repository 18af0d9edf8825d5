"""Files in bench/results: what was measured, when, on what, and by which command."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"


def kind_row(
    shape: str,
    values: Mapping[str, float | str],
    *,
    unit: str = "us",
    goal: str = "",
    base: Mapping[str, float] | float | None = None,
    against: str = "RocketMQ 5.5.0",
) -> dict[str, Any]:
    """One row of a kind of messages, as report.py makes a table of it.

    `values` is what was measured, by server; text where it is more than a number. With `base`, a number or one by server,
    the row has `ratios` of what is Aerobee's to it, and `against` says what it is. `goal` is text, such as "<= 0.3 x".
    """
    ratios = {}
    for server, value in values.items():
        reference = base.get(server) if isinstance(base, Mapping) else base
        if reference and isinstance(value, (int, float)) and server.startswith("aerobee"):
            ratios[server] = round(value / reference, 3)
    rounded = {name: round(value, 2) if isinstance(value, float) else value for name, value in values.items()}
    return {
        "shape": shape,
        "unit": unit,
        "values": rounded,
        "goal": goal,
        "against": against,
        "ratios": ratios,
    }


def write_kind(name: str, title: str, rows: list[dict[str, Any]], details: Any = None) -> Path:
    """Write bench/results/kind-NAME.json: rows of kind_row(), and `details` for those who look closer."""
    return write(f"kind-{name}", {"title": title, "rows": rows, "details": details})


def _from_repository(path: str) -> str:
    try:
        return str(Path(path).resolve().relative_to(RESULTS.parent.parent))
    except ValueError:
        return path


def write(name: str, results: Any) -> Path:
    """Write bench/results/NAME.json with the circumstances of the run; `results` is the tool's own."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    document = {
        "when": time.strftime("%Y-%m-%d"),
        "command": shlex.join(["python", _from_repository(sys.argv[0]), *sys.argv[1:]]),
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
