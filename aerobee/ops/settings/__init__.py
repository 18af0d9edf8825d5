"""Sources of servers' settings, RocketMQ's keys, and the meaning of each key."""
