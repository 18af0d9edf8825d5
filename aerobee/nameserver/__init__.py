"""The NameServer: which broker serves which topic. Modules are imported at their first use: brokers need only its settings."""

from typing import TYPE_CHECKING

from aerobee.nameserver.config import NameServerConfig

if TYPE_CHECKING:
    from aerobee.nameserver.server import NameServer

__all__ = ["NameServer", "NameServerConfig"]


def __getattr__(name: str) -> object:
    if name != "NameServer":
        raise AttributeError(f"module 'aerobee.nameserver' has no attribute {name!r}")
    from aerobee.nameserver.server import NameServer

    globals()[name] = NameServer
    return NameServer
