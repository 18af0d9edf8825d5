"""Pull, push and simple (POP) consumers."""
