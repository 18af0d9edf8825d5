"""The pytest plugin of Aerobee."""
