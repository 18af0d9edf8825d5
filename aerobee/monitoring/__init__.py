"""What every role shows to a monitoring system over HTTP: its numbers and its health. Needs the extra `metrics`."""
