"""Transactions: half messages, their outcome, and asking producers about the ones that stay open."""
