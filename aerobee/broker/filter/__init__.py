"""Message filters that a broker evaluates: SQL92 over message properties."""
