"""Assembly of a broker: its parts, handlers, ports and life cycle."""
