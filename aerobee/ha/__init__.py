"""Replication: the quorum of controllers, and the cores of both HA modes."""
