"""Replication: the quorum of controllers, and the cores of both HA modes. Nothing of it is wired into a broker yet."""
