"""What a broker knows: settings, topics, role, and the small files that keep them. Imports no other package of broker/."""
