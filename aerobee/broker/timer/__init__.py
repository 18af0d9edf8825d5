"""Messages at any time: the timer wheel of the broker (TimerMessageStore of RocketMQ)."""
