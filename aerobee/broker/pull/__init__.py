"""Pulls: what a consumer reads of a queue, and the pulls that wait for a message."""
