"""`python -m aerobee` is the `aerobee` command."""

from aerobee.ops.cli import main

main()
