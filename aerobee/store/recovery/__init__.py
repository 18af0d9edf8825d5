"""Recovery at start-up, and truncation of a log."""
