"""The audit log: refused keys, changes of voices and models, the settings. Lines of the logger `oscine.audit`, with the
client's address and the number of its key in the settings; never the key itself, a text, or a consent."""

from __future__ import annotations

import contextvars
import logging
from typing import Any

from oscine.server.logs import log_fields

_log = logging.getLogger("oscine.audit")

client_address: contextvars.ContextVar[str | None] = contextvars.ContextVar("client_address", default=None)
key_number: contextvars.ContextVar[int | None] = contextvars.ContextVar("key_number", default=None)  # from 1 on


def audit(event: str, **fields: Any) -> None:
    _log.info(event, extra=log_fields(client=client_address.get(), key=key_number.get(), **fields))
