"""Consume queues: files of entries, and the table of all queues."""
