"""Placement of topics' queues on brokers: a planner, and the execution of its plans."""
