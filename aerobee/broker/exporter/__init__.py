"""What a broker shows at /metrics: its own numbers under RocketMQ's names, and how far its consumers are behind."""
