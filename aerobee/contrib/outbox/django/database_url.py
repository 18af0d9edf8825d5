"""The SQLAlchemy URL of a database of Django's settings: the relay is the same for both."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from sqlalchemy import URL

from aerobee.errors import UsageError

# Django's engine -> driver packages, the first installed one is used
DRIVERS = {
    "postgresql": (("psycopg", "postgresql+psycopg"), ("asyncpg", "postgresql+asyncpg")),
    "postgis": (("psycopg", "postgresql+psycopg"), ("asyncpg", "postgresql+asyncpg")),
    "mysql": (("asyncmy", "mysql+asyncmy"),),
    "sqlite3": (("aiosqlite", "sqlite+aiosqlite"),),
}


def database_url(settings: Mapping[str, Any]) -> URL:
    """The URL for one entry of DATABASES. Raises UsageError for an engine without an asynchronous driver here."""
    engine = str(settings.get("ENGINE", "")).rpartition(".")[2]
    drivers = DRIVERS.get(engine, ())
    for package, name in drivers:
        if find_spec(package) is not None:
            return URL.create(
                name,
                username=settings.get("USER") or None,
                password=settings.get("PASSWORD") or None,
                host=settings.get("HOST") or None,
                port=int(settings["PORT"]) if settings.get("PORT") else None,
                database=str(settings["NAME"]),
            )
    packages = " or ".join(package for package, _ in drivers)
    raise UsageError(
        f"the relay needs one of these packages for the database engine {engine}: {packages}"
        if packages
        else f"the outbox does not support the database engine {engine!r}: PostgreSQL, MySQL and SQLite are possible"
    )
