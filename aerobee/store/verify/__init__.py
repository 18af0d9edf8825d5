"""Looking at a store, and mending it."""
