"""Appending to the log, and when what was appended is visible and durable."""
