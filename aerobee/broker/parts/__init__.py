"""The shared parts of a broker, as one object from which handlers and features are created."""
