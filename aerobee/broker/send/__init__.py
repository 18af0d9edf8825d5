"""Incoming messages that the fast path does not serve: sends, send-backs, replies, and their checks."""
