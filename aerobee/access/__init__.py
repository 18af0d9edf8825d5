"""Access control: users, policies, permissions of each request, and the gate before the handlers."""
