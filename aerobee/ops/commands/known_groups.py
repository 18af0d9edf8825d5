"""Groups that brokers know, for commands that change or show one."""

from __future__ import annotations

import difflib

from aerobee.client import Admin
from aerobee.ops.terminal.failure import NotFound


async def require_group(admin: Admin, group: str) -> None:
    """Raise NotFound, with similar names, for a group that no broker knows."""
    names = {info.name for info in await admin.groups()}
    if group not in names:
        alike = difflib.get_close_matches(group, names, n=3)
        hint = f" (did you mean {' or '.join(alike)}?)" if alike else ""
        raise NotFound(f"no broker knows group {group}{hint}; `aerobee group list` shows the known groups")
