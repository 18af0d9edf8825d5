"""A whole cluster in one process on simulated time, network and disks: the real code, and every fault that a seed brings."""
