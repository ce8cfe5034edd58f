"""`/v1/models` through OpenAI's SDK."""

from __future__ import annotations

import openai
import pytest
from openai import OpenAI

from tests.server.api.openai.talk import of


def test_models(client: OpenAI) -> None:
    (model,) = client.models.list()
    assert model.id == "tiny-rmt"
    assert (model.object, model.owned_by) == ("model", "everlong")
    assert model.created > 1_700_000_000
    assert client.models.retrieve(model.id) == model
    with pytest.raises(openai.NotFoundError) as error:
        client.models.retrieve("gpt-5")
    assert of(error) == ("model_not_found", "model_id")


def test_a_model_whose_name_has_a_slash(client: OpenAI) -> None:
    """As models of the hub have."""
    with pytest.raises(openai.NotFoundError, match="no model 'HuggingFaceTB/SmolLM2-135M-Instruct'") as error:
        client.models.retrieve("HuggingFaceTB/SmolLM2-135M-Instruct")
    assert of(error) == ("model_not_found", "model_id")
