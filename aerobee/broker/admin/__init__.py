"""Calls of administrators and their tools: topics, groups, offsets, counters."""
