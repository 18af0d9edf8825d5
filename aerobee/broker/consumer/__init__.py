"""Groups and their members: subscriptions, pulls, offsets, locks, assignment."""
