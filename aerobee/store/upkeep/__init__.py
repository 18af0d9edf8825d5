"""Periodic tasks: flushing queues, deleting expired files."""
