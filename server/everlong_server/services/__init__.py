"""The parts of a running server, built once and passed to the API: `Shared` by all tenants, `Services` of one tenant."""

from everlong_server.services.checks import NoKeys, read_api_key, require_keys, require_schema, require_vault
from everlong_server.services.models import ModelSource, NamedModel
from everlong_server.services.shared import Shared
from everlong_server.services.start import run_services
from everlong_server.services.tenant import Services, tenant_services

__all__ = [
    "ModelSource", "NamedModel", "NoKeys", "Services", "Shared", "read_api_key", "require_keys", "require_schema", "require_vault",
    "run_services", "tenant_services",
]  # fmt: skip
