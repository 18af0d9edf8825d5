"""Aerobee: a distributed message queue, interchangeable with Apache RocketMQ part by part."""
