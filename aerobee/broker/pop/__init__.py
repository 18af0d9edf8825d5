"""POP: messages are delivered for an invisible time, acknowledged individually, and redelivered when that time
expires."""
