"""`python -m aerobee.ops` is the `aerobee` command; `up` starts its further brokers this way."""

from aerobee.ops.cli import main

main()
