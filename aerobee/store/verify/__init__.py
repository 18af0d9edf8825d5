"""Verification and repair of a store."""
