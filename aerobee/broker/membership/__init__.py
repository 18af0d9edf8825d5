"""Clients that come and go (heartbeats), and the broker's registration with NameServers."""
