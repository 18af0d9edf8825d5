"""Selects the backend that encodes rows: native or Python. AEROBEE_CLIENT_CODEC chooses, as for the client's codec.

The native package may be older than this file: without ArrowRows, the Python backend is used.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from types import ModuleType

from aerobee.client.session.codec import NATIVE, PYTHON, VARIABLE
from aerobee.errors import ConfigError
from aerobee.message import MessageQueue
from aerobee.spark.rows import NativeRows, PythonRows, Rows

native: ModuleType | None
try:
    import aerobee_native as native
except ImportError:
    native = None


def choose_rows(
    queue: MessageQueue, columns: Iterable[str], tags: frozenset[str], wanted: str | None = None
) -> Rows:
    """Rows of the backend to use; `wanted` is AEROBEE_CLIENT_CODEC unless given. Raises ConfigError when it
    is not available.
    """
    wanted = os.environ.get(VARIABLE, "") if wanted is None else wanted
    arrow_rows = getattr(native, "ArrowRows", None)
    if wanted == NATIVE and arrow_rows is None:
        raise ConfigError(
            f"{VARIABLE} is {NATIVE}, but this installation has no native module, or one without ArrowRows: install a wheel of "
            "this platform, or run `make native` in a checkout"
        )
    if wanted == PYTHON or arrow_rows is None:
        return PythonRows(queue, columns, tags)
    return NativeRows(arrow_rows, queue, columns, tags)
