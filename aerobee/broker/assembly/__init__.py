"""How a broker is put together: its parts, handlers, ports and life cycle."""
