"""A client's conversation with NameServers and brokers: routes, heartbeats, codecs of sends."""
