"""What is done periodically: flushing queues, deleting old files."""
