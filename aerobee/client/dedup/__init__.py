"""Effects that happen once although a message may be delivered twice: handler wrapper and stores (extra `dedup`).

    from aerobee.client.dedup import deduplicated
    from aerobee.client.dedup.sql import SqlDedup

Import a store from its module, so that only the library of this store is required.
"""

from aerobee.client.dedup.handler import DedupStore, KeyOf, deduplicated, key_of
from aerobee.property_names import DEDUP_KEY

__all__ = ["DEDUP_KEY", "DedupStore", "KeyOf", "deduplicated", "key_of"]
