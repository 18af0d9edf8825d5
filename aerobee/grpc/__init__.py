"""RocketMQ's gRPC protocol without I/O: HTTP/2 connections, gRPC calls over them, and the messages."""
