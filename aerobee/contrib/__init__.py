"""Bridges to the frameworks that Python programs use. Each one is a package with an extra of the same name."""
