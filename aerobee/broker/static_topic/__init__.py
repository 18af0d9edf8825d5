"""Static topics: requests for logical queues, served by the physical queues behind them, here or at other brokers."""
