"""Health of a server: started, alive, ready, with the reason when it is not. No I/O.

/startupz   whether start() has completed: recovery of a large store can take minutes
/livez      whether the event loop still runs: any reply means that it does
/readyz     whether this process should receive requests: each check returns a reason why not, or ""
"""

from __future__ import annotations

from collections.abc import Callable

Check = Callable[[], str]


class Health:
    """The checks of one process. A check returns why the process is not ready, or an empty text."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.is_started = False
        self._checks: dict[str, Check] = {}

    def check(self, name: str, check: Check) -> None:
        """Add a check; a second one of that name replaces the first."""
        self._checks[name] = check

    def reasons(self) -> dict[str, str]:
        """Reasons why this process is not ready, by name of the check; empty when it is ready."""
        if not self.is_started:
            return {"startup": f"the {self.role} is still starting"}
        found = {}
        for name, check in self._checks.items():
            try:
                reason = check()
            except Exception as error:
                reason = f"the check failed: {error!r}"
            if reason:
                found[name] = reason
        return found
