"""Ground layer of the client: configuration, routes, results, received messages. Imports no other package of client/."""
