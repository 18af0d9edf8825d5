"""Metrics of a broker, with types, units and descriptions."""
