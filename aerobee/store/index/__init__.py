"""The index of message keys."""
