"""Membership of clients (heartbeats), and the broker's registration with NameServers."""
