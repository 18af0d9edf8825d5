"""Lite topics (RIP-83): subscriptions, pops and expiry of the many small queues under one topic."""
