"""Where the queues of topics lie, and how they get elsewhere: a planner and what carries its plans out."""
