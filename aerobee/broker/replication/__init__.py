"""Replication of one broker: its HA port, its copy of a master's log, and the acknowledgements of replicas."""
