"""Messages that wait: delay levels, and the delivery of whatever has waited (timer/ delivers through it too)."""
