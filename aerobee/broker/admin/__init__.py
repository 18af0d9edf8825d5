"""Administrative requests: topics, groups, offsets, counters."""
