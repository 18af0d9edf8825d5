"""Replication of one broker: its HA port, its copy of a master's log, and what acknowledgements wait for."""
