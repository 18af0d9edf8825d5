"""The controller as a process: a Raft replica with its peers, the calls of brokers and tools, elections of masters."""
