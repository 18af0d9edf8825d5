"""The commit log: its files, record layout, scanning and flushing."""
