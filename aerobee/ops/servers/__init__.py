"""Commands that start servers: up, nameserver, broker, controller, console, and the image's entry point."""
