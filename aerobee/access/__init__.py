"""Who may do what: users, policies, what each request needs, and the gate before the handlers."""
