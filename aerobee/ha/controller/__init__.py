"""The controller: its state machine (state, commands, election, leases, liveness) and the server around it."""
