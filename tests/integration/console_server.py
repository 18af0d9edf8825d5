"""A console over a cluster."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aerobee.console.config import ConsoleConfig
from aerobee.console.server import ConsoleServer
from aerobee.console.users import hash_password
from aerobee.testing import LocalCluster


@asynccontextmanager
async def console(cluster: LocalCluster, **options: Any) -> AsyncIterator[ConsoleServer]:
    config = ConsoleConfig(nameserver=cluster.nameserver_address, port=0, refresh_s=0.2, **options)
    server = ConsoleServer(config)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def users_file(path: Path) -> Path:
    file = path / "users.json"
    people = {"vera": "viewer", "otto": "operator", "ada": "admin"}
    file.write_text(
        json.dumps(
            {name: {"role": role, "password": hash_password("secret")} for name, role in people.items()}
        )
    )
    return file
