"""Holds the messages that test clients receive against the AsyncAPI document."""

from functools import cache
from typing import Any

import jsonschema_rs

from oscine.server.asyncapi import PROTOCOLS, asyncapi


@cache
def _validators(path: str, kind: str) -> list[Any]:
    """One for each protocol of this path that has such an event. Closed: a field that is not described is an error."""
    document = asyncapi(has_keys=False)
    found = []
    for name, protocol in PROTOCOLS.items():
        if protocol.address == path and kind in protocol.events:
            payload = document["channels"][name]["messages"][kind]["payload"]
            found.append(jsonschema_rs.validator_for({**payload, "additionalProperties": False}))
    return found


def check_described(path: str, message: Any) -> None:
    validators = _validators(path, message["type"])
    assert any(validator.is_valid(message) for validator in validators), (
        f"{message} of {path} is not in the AsyncAPI document; add it to asyncapi.py"
    )
