"""Files, and modules that all parts of the store share: disk, configuration, JSON files, checkpoint, locks."""
