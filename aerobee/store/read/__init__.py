"""Reading messages by queue offset, physical offset and key."""
