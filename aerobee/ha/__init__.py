"""Replication: the quorum that elects masters (`raft/`). Cores first; their shells are named as such."""
