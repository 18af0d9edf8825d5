"""Files and what every part of the store shares: disk, configuration, JSON files, checkpoint, locks."""
