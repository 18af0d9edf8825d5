"""Consumers that pull, that are pushed to, and that pop."""
