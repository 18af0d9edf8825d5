"""Hosts from which slaves may connect to the HA port (haAllowedHosts)."""

from __future__ import annotations

from aerobee.peer_hosts import is_within, parse_networks
from aerobee.store.files.config import StoreConfig


def host_refusal(config: StoreConfig, host: str) -> str:
    """Reason why no slave may connect from `host`, "" when it may. An empty haAllowedHosts accepts all."""
    if not config.ha_allowed_hosts:
        return ""
    if is_within(host, parse_networks(config.ha_allowed_hosts)):
        return ""
    return f"{host} is none of haAllowedHosts"
