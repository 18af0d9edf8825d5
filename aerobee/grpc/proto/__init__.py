"""The messages of apache.rocketmq.v2: their definition, and the classes generated from it."""
