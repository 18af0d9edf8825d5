"""Metrics and health over HTTP, for every role. Needs the extra `metrics`."""
