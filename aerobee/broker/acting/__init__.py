"""A slave that acts as master while its master is away (enableSlaveActingMaster)."""
