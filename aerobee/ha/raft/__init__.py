"""Consensus without IO: `node.py` decides, `storage.py` makes durable, `replica.py` puts the two in the right order."""
