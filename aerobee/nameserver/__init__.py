"""The NameServer: which broker serves which topic."""

from aerobee.nameserver.config import NameServerConfig
from aerobee.nameserver.server import NameServer

__all__ = ["NameServer", "NameServerConfig"]
