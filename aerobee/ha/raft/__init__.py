"""The Raft core and its service over remoting."""
