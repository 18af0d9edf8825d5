"""RocketMQ's gRPC service in the broker's process: sessions, RPCs and what they need of the broker."""
