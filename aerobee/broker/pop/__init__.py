"""POP: messages handed out for a time, acknowledged one by one, and handed out again when that time runs out."""
