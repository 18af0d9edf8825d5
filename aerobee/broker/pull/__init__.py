"""Pulls: reads of consumers, and pending pulls."""
