"""Transactions: half messages, their outcome, and checks of open transactions with their producers."""
