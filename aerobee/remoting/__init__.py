"""The remoting protocol: frames, headers, shared bodies, connections, server and client. Layer 1."""
