"""Groups and their members: subscriptions, offsets, locks, assignment."""
