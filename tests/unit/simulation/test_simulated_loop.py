"""The simulation's event loop makes tasks as every supported Python's create_task asks for them."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any

import pytest

from aerobee.simulation.simulated_loop import SimulatedClock, SimulatedLoop

CONTEXT = contextvars.copy_context()


@pytest.mark.parametrize(
    "options",
    [{}, {"context": CONTEXT}, {"name": "a task", "context": CONTEXT}, {"name": None}],
    ids=["3.11", "3.11-context", "3.14", "3.14-unnamed"],
)
def test_the_task_factory_takes_the_options_of_each_python(options: dict[str, Any]) -> None:
    loop = SimulatedLoop(SimulatedClock())

    async def work() -> int:
        return 7

    try:
        factory: Any = loop.get_task_factory()
        task: asyncio.Task[int] = factory(loop, work(), **options)
        assert loop.run_until_complete(task) == 7
        assert options.get("name") in (None, task.get_name())
    finally:
        loop.close()
