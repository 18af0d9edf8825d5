"""What a broker counts, with types, units and meanings."""
