"""Classifies errors of a user's handler, checker or listener: outcome of that call, or end of the task or program."""

from __future__ import annotations

import asyncio


def is_of_handler(error: BaseException) -> bool:
    """Whether an exception of a handler call is the call's outcome, instead of the end of its worker or of the
    program.

    A handler that awaits a cancelled task raises CancelledError too, without being cancelled itself. Call this function
    in the task that called the handler.
    """
    if isinstance(error, asyncio.CancelledError):
        worker = asyncio.current_task()
        return worker is None or not worker.cancelling()
    return not isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit)
