"""Files of the timer: log, wheel, checkpoint."""
