"""How counts are written in what people read. Core; every text that counts things uses it."""


def plural(count: int, noun: str, nouns: str = "") -> str:
    """ "1 message", "2 messages"; `nouns`: an irregular plural."""
    return f"{count} {noun if count == 1 else nouns or noun + 's'}"
