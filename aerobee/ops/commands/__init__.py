"""The commands of `aerobee`, one noun a file; tree.py loads them by name."""
