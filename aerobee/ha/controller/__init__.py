"""The controller's state machine: groups of brokers, their ids, masters and sync state sets."""
