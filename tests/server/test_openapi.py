"""The OpenAPI document is up to date and documents errors."""

from __future__ import annotations

from pathlib import Path

from everlong_server.openapi import openapi, render

CONTRACT = Path(__file__).parents[2] / "clients" / "openapi.json"


def test_the_stored_document_is_up_to_date() -> None:
    assert CONTRACT.read_text() == render(), "clients/openapi.json is stale: run `make openapi`"


def test_every_endpoint_documents_its_errors() -> None:
    for path, methods in openapi()["paths"].items():
        for method, operation in methods.items():
            if path.startswith(("/v1/documents", "/v1/sessions")):
                assert {"404", "409", "422", "503"} <= operation["responses"].keys(), (method, path)
                assert operation["summary"] or operation["description"]
