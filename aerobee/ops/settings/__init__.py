"""Where servers' settings come from, RocketMQ's keys, and what each means."""
