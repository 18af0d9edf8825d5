"""Options that commands share, shell completion, and how commands reach a cluster."""
