"""`audit`: logs administrative actions, one JSON object a line, at every log level: who, what, when, in which request."""

from __future__ import annotations

import json
import logging
import os
import time
from typing import Any

from everlong_server.observability.logs import REQUEST_ID

log = logging.getLogger("everlong_server.observability.audit")


def audit(event: str, by: str, **facts: Any) -> None:
    """Log that `by` did `event`. `facts` are ids and numbers, never secrets."""
    entry = {"event": event, "at": time.time(), "by": by, "request_id": REQUEST_ID.get(), **facts}
    log.info("%s", json.dumps(entry, ensure_ascii=False), extra={"entry": entry})


def command_line_user() -> str:
    """Return the actor of a command line, for `audit`."""
    return f"command line, user {os.getuid()}"
