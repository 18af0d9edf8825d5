"""What commands print and how they fail: tables, JSON, progress, times, exit codes."""
