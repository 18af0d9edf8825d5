"""The messages of apache.rocketmq.v2: their definition and the classes that are made of it."""
