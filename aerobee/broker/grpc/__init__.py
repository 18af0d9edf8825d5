"""RocketMQ's gRPC service in the broker's process: sessions, RPCs, and their adapters to the broker's services."""
