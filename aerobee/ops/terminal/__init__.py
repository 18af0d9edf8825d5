"""Output and failures of commands: tables, JSON, progress, times, exit codes."""
