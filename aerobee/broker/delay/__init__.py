"""Delay levels, and the delivery of due messages (timer/ uses it too)."""
