"""`aerobee proxy`: gRPC in front of any cluster, Aerobee's or RocketMQ's, which it reaches by remoting."""
