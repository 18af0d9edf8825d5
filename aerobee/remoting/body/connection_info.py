"""Connection: one client as GET_CONSUMER_CONNECTION_LIST and GET_PRODUCER_CONNECTION_LIST show it. Source: Connection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aerobee.caller import REMOTING
from aerobee.remoting.body import json_fields
from aerobee.remoting.codes import LanguageCode

_LANGUAGES = tuple(code.name for code in LanguageCode)


@dataclass(frozen=True, slots=True)
class ConnectionInfo:
    """`client_addr` "ip:port", `language` the name of a LanguageCode, `version` an MQVersion ordinal."""

    client_id: str
    client_addr: str
    language: str
    version: int
    protocol: str = REMOTING  # Aerobee-specific; RocketMQ's brokers do not say it

    def to_dict(self) -> dict[str, Any]:
        info = {
            "clientAddr": self.client_addr,
            "clientId": self.client_id,
            "language": self.language,
            "version": self.version,
        }
        return info if self.protocol == REMOTING else {**info, "protocol": self.protocol}

    @classmethod
    def from_dict(cls, fields: json_fields.Fields) -> ConnectionInfo:
        language = fields.get("language")
        known = isinstance(language, int) or language in _LANGUAGES
        return cls(
            json_fields.text(fields, "clientId"),
            json_fields.text(fields, "clientAddr"),
            json_fields.enum_name(fields, "language", _LANGUAGES, "OTHER") if known else "OTHER",
            json_fields.integer(fields, "version"),
            json_fields.text(fields, "protocol") or REMOTING,
        )
