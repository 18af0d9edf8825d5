"""A placement plan as a page: its changes, forecast, warnings, and remaining steps. Executes nothing.

`aerobee placement apply` executes the plan, because that takes hours and must outlive a page. The plan is the file of `--plan`, with
its journal, or the text that a browser sends.
"""

from __future__ import annotations

import shlex
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from aerobee.clock import Clock
from aerobee.errors import AerobeeError, UsageError
from aerobee.placement.apply import Applier
from aerobee.placement.apply_config import ApplyConfig
from aerobee.placement.cluster import PlacementAdmin
from aerobee.placement.journal import Journal
from aerobee.placement.plan import Plan, parse_plan

STEPS_SHOWN = 500
FILE_BYTES_MAX = 64 * 1024 * 1024


class PlacementView:
    """Reads plans."""

    def __init__(self, admin: PlacementAdmin, clock: Clock, nameserver: str, plan_file: Path | None) -> None:
        self._admin = admin
        self._clock = clock
        self._nameserver = nameserver
        self._plan_file = plan_file

    async def of_file(self) -> dict[str, Any]:
        """The plan of --plan; {"file": null} without one."""
        if self._plan_file is None:
            return {"file": None}
        try:
            if self._plan_file.stat().st_size > FILE_BYTES_MAX:
                raise UsageError(f"{self._plan_file} is not a plan: it is larger than {FILE_BYTES_MAX} bytes")
            plan = parse_plan(self._plan_file.read_bytes())
        except OSError as error:
            raise UsageError(f"the plan {self._plan_file} cannot be read: {error.strerror}") from error
        journal = Journal(self._plan_file.with_name(self._plan_file.name + ".journal"))
        return await self._document(plan, str(self._plan_file), journal)

    async def of_text(self, text: bytes) -> dict[str, Any]:
        """A plan that a browser sends; it is unknown whether its execution has begun."""
        plan = parse_plan(text)
        with tempfile.TemporaryDirectory() as directory:  # without a journal all steps count as remaining
            return await self._document(plan, "plan.json", Journal(Path(directory) / "journal"))

    async def _document(self, plan: Plan, file: str, journal: Journal) -> dict[str, Any]:
        applier = Applier(self._admin, plan, journal, clock=self._clock, config=ApplyConfig())
        left, trouble = [], ""
        try:
            left = await applier.left()
        except AerobeeError as error:
            trouble = str(error)
        phases = Counter(step.kind.value for step in left)
        names = sorted({*plan.before.imbalance, *plan.after.imbalance})
        return {
            "file": file,
            "made_at_ms": plan.made_at_ms,
            "warnings": plan.warnings,
            "forecast": [
                {
                    "resource": name,
                    "before": plan.before.imbalance.get(name),
                    "after": plan.after.imbalance.get(name),
                }
                for name in names
            ],
            "changes": [
                {
                    "topic": each.topic,
                    "before": dict(each.before),
                    "after": dict(each.after),
                    "moved_keys": each.moved_keys if each.keeps_keys else None,
                }
                for each in plan.changes
            ],
            "phases": [{"phase": phase, "steps": count} for phase, count in phases.items()],
            "steps": [{"step": str(step), "phase": step.kind.value} for step in left[:STEPS_SHOWN]],
            "steps_left": len(left),
            "trouble": trouble,
            "is_begun": bool(journal.events()),
            "commands": {
                name: shlex.join(("aerobee", "placement", *words, "--nameserver", self._nameserver))
                for name, words in (
                    ("look", ("apply", file, "--dry-run")),
                    ("apply", ("apply", file)),
                    ("revert", ("revert", file)),
                )
            },
        }
