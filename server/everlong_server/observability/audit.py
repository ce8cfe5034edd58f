"""`audit`: what administrators did, a line of JSON each, whatever the log level: who, what, when, in which request."""

from __future__ import annotations

import json
import logging
import os
import time
from typing import Any

from everlong_server.observability.logs import REQUEST_ID

log = logging.getLogger("everlong_server.observability.audit")


def audit(event: str, by: str, **facts: Any) -> None:
    """Writes that `by` did it. `facts`: ids and figures; no secret."""
    entry = {"event": event, "at": time.time(), "by": by, "request_id": REQUEST_ID.get(), **facts}
    log.info("%s", json.dumps(entry, ensure_ascii=False), extra={"entry": entry})


def command_line_user() -> str:
    """Who has typed a command."""
    return f"command line, user {os.getuid()}"
