"""The /metrics page of a broker: its metrics under RocketMQ's names, and the lag of its consumers."""
