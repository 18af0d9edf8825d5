"""Appends to the log, and the visibility and durability of appended records."""
