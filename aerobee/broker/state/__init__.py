"""State of a broker: settings, topics, role, and their files. Imports no other package of broker/."""
