"""The bodies of requests and responses that several parts share, one noun a file.

Every class is a frozen dataclass with `to_dict()` and `from_dict()`, in RocketMQ's field names and in the alphabetical
order in which RocketMQ writes them; classes of whole bodies also have `encode() -> bytes` and `decode(bytes)`. Reading accepts
what any client writes (numbers as text, enums as names or ordinals, null and absent alike), ignores keys that are not
known, and raises MalformedFrame for the rest.
"""
