"""Settings of the NameServer under attack."""

from __future__ import annotations

from aerobee.nameserver.config import NameServerConfig

SERVER = NameServerConfig(listen_port=0, bind_address="127.0.0.1")
