"""The remoting protocol: frames, headers, shared bodies, connections, server and client. Floor 1."""
