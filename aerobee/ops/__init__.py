"""The `aerobee` command. Its entry point is cli.py; each command group is a file of its own."""
