"""The `aerobee` command. Its entry point is cli.py; one module per command group."""
