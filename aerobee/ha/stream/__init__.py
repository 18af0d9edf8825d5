"""Formats of replication between master and slave: handshakes, frames, epochs."""
