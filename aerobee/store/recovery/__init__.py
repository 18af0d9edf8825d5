"""What a start finds and repairs, and how a log is cut."""
