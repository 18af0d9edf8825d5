"""Message trace and OpenTelemetry spans."""
