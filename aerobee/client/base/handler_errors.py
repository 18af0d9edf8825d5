"""Which errors out of a user's handler, checker or listener are that call's outcome, and which end the task or the program."""

from __future__ import annotations

import asyncio


def is_of_handler(error: BaseException) -> bool:
    """Whether what a handler call raised is its outcome, instead of the end of its worker or of the program.

    A handler that awaits a cancelled task raises CancelledError too, without being cancelled itself. Call this function
    in the task that called the handler.
    """
    if isinstance(error, asyncio.CancelledError):
        worker = asyncio.current_task()
        return worker is None or not worker.cancelling()
    return not isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit)
