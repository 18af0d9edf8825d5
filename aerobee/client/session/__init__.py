"""A client's communication with NameServers and brokers: routes, heartbeats, codecs of sends."""
