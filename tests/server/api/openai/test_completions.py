"""`/v1/completions` through OpenAI's SDK."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from openai import OpenAI
from transformers import AutoTokenizer

from everlong_models import load_model
from tests.process import Server
from tests.server.api.openai.talk import MODEL, SEGMENT, TEXT, of

GREEDY: dict[str, Any] = {"temperature": 0, "extra_body": {"ignore_eos": True}}


def complete(client: OpenAI, prompt: Any, **more: Any) -> Any:
    return client.completions.create(**{"model": MODEL, "max_tokens": 8, **GREEDY, **more}, prompt=prompt)


@pytest.fixture(scope="module")
def tokenizer(own_server: Server) -> Any:
    return AutoTokenizer.from_pretrained(Path(own_server.environment["EVERLONG_MODEL"]) / "backbone")


def test_a_text_goes_on(client: OpenAI, tokenizer: Any) -> None:
    completion = complete(client, "Alice was beginning")
    (choice,) = completion.choices
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "length", None)
    assert choice.text
    assert completion.object == "text_completion"
    ids = tokenizer.encode("Alice was beginning", add_special_tokens=False)
    assert completion.usage.prompt_tokens == len(ids), "no chat format"
    assert completion.usage.completion_tokens == 8
    echoed = complete(client, ids, echo=True).choices[0]
    assert echoed.text == "Alice was beginning" + choice.text


def test_several_prompts_and_texts(client: OpenAI, tokenizer: Any) -> None:
    prompts = ["Alice was", "The cat", "A king"]
    each = [complete(client, prompt).choices[0].text for prompt in prompts]
    both = complete(client, prompts, n=2)
    assert [choice.index for choice in both.choices] == list(range(6))
    assert [choice.text for choice in both.choices] == [text for text in each for _ in range(2)]
    tokens = [tokenizer.encode(prompt, add_special_tokens=False) for prompt in prompts]
    assert [choice.text for choice in complete(client, tokens).choices] == each
    sampled = complete(client, "Alice was", n=2, temperature=1, seed=3)
    assert sampled.choices[0].text != sampled.choices[1].text
    assert complete(client, "Alice was", temperature=1, seed=4).choices[0].text == sampled.choices[1].text


def test_a_server_that_generates_one_text_at_a_time(new_server: Callable[..., Server]) -> None:
    server = new_server(recall_passages=0, max_streams=1, max_queued=0).start()
    body = {"model": MODEL, "prompt": ["a", "b", "c"], "max_tokens": 2}
    assert len(server.http.post("/v1/completions", json=body).json()["choices"]) == 3


def test_a_stream_has_the_same_text(client: OpenAI) -> None:
    whole = complete(client, ["Alice was", "The cat"], logprobs=2, echo=True)
    chunks = list(
        complete(
            client, ["Alice was", "The cat"], logprobs=2, echo=True, stream=True, stream_options={"include_usage": True}
        )
    )
    for choice in whole.choices:
        pieces = [chunk.choices[0] for chunk in chunks if chunk.choices and chunk.choices[0].index == choice.index]
        assert "".join(piece.text for piece in pieces) == choice.text
        assert pieces[-1].finish_reason == "length"
        assert [
            token for piece in pieces if piece.logprobs for token in piece.logprobs.tokens
        ] == choice.logprobs.tokens
        offsets = [offset for piece in pieces if piece.logprobs for offset in piece.logprobs.text_offset]
        assert offsets == choice.logprobs.text_offset
    assert chunks[-1].usage.to_dict() == whole.usage.to_dict()


def test_scores_are_those_of_the_backbone(client: OpenAI, own_server: Server, tokenizer: Any) -> None:
    """In the first segment an untrained memory adds only its memory tokens, so the model itself is the reference."""
    text = "Alice was beginning to get very tired"
    ids = tokenizer.encode(text, add_special_tokens=False)
    scored = complete(client, ids, echo=True, logprobs=3, max_tokens=0).choices[0]
    logprobs = scored.logprobs
    assert scored.text == text
    assert "".join(logprobs.tokens) == text
    assert [
        text[at : at + len(token)] for at, token in zip(logprobs.text_offset, logprobs.tokens, strict=True)
    ] == logprobs.tokens
    assert logprobs.token_logprobs[0] is None
    assert logprobs.top_logprobs[0] is None
    model = load_model(own_server.environment["EVERLONG_MODEL"], models_dir=Path("/nonexistent"))
    with torch.inference_mode():
        logits = model.memory(torch.tensor([ids]), model.memory.initial_state(1))[0]
    reference = torch.log_softmax(logits.float(), -1)
    for position, token in enumerate(ids[1:]):
        assert logprobs.token_logprobs[position + 1] == pytest.approx(float(reference[position, token]), abs=1e-3)
        likeliest = logprobs.top_logprobs[position + 1]
        assert max(likeliest.values()) == pytest.approx(float(reference[position].max()), abs=1e-3)
        assert likeliest[logprobs.tokens[position + 1]] == logprobs.token_logprobs[position + 1]


def test_generated_tokens_have_scores(client: OpenAI) -> None:
    choice = complete(client, "Alice was", logprobs=0).choices[0]
    assert len(choice.logprobs.tokens) == 8
    assert all(score <= 0 for score in choice.logprobs.token_logprobs)
    echoed = complete(client, "Alice was" + choice.text, logprobs=0, echo=True, max_tokens=0).choices[0].logprobs
    assert echoed.token_logprobs[-1] == pytest.approx(choice.logprobs.token_logprobs[-1], abs=1e-2)


def test_a_prompt_beyond_the_context_is_read_into_the_memory(client: OpenAI, tokenizer: Any) -> None:
    ids = tokenizer.encode(TEXT, add_special_tokens=False)[: 5 * SEGMENT + 7]
    scored = complete(client, ids, echo=True, logprobs=1, max_tokens=2)
    (choice,) = scored.choices
    assert scored.usage.prompt_tokens == len(ids)
    assert len(choice.logprobs.tokens) == len(ids) + 2
    assert all(score is not None for score in choice.logprobs.token_logprobs[1:])
    other = complete(client, [5] * SEGMENT + ids[SEGMENT:], max_tokens=0, echo=True, logprobs=1).choices[0].logprobs
    after = slice(SEGMENT + 1, 2 * SEGMENT)
    assert other.token_logprobs[after] != choice.logprobs.token_logprobs[after], (
        "the memory keeps something of the first segment"
    )
    exact = complete(client, ids[: 2 * SEGMENT], echo=True, logprobs=1, max_tokens=1).choices[0]
    assert exact.logprobs.token_logprobs[1:-1] == pytest.approx(
        choice.logprobs.token_logprobs[1 : 2 * SEGMENT], abs=1e-3
    )


def test_a_harness_gets_one_entry_beyond_the_prompt(client: OpenAI, tokenizer: Any) -> None:
    """lm-eval requests one token with the scores, and drops the last entry, even if that token is the end of the text."""
    ids = tokenizer.encode("Alice was beginning", add_special_tokens=False)
    bias = {str(tokenizer.convert_tokens_to_ids("<|im_end|>")): 100}
    how = {"temperature": 0, "extra_body": {}, "logit_bias": bias, "seed": 1234}
    choice = complete(client, [ids], echo=True, logprobs=1, max_tokens=1, **how).choices[0]
    logprobs = choice.logprobs
    assert len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == len(ids) + 1
    assert choice.text == "Alice was beginning"
    greedy = [
        score == max(top.values())
        for score, top in zip(logprobs.token_logprobs[1:], logprobs.top_logprobs[1:], strict=True)
    ]
    for is_greedy, token, top in zip(greedy, logprobs.tokens[1:], logprobs.top_logprobs[1:], strict=True):
        assert is_greedy == (max(top, key=top.__getitem__) == token)


def test_a_retry_replays_the_texts(client: OpenAI) -> None:
    how = {"temperature": 1, "extra_headers": {"Idempotency-Key": "completion-1"}}
    first = complete(client, "Alice was", **how)
    assert complete(client, "Alice was", **how).to_dict() == first.to_dict()
    streamed = {**how, "extra_headers": {"Idempotency-Key": "completion-2"}}
    text = "".join(chunk.choices[0].text for chunk in complete(client, "Alice was", stream=True, **streamed))
    replayed = list(complete(client, "Alice was", stream=True, **streamed))
    assert "".join(chunk.choices[0].text for chunk in replayed) == text


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"suffix": "the end"}, "invalid_value", "suffix"),
        ({"best_of": 2}, "invalid_value", "best_of"),
        ({"prompt": ""}, "invalid_value", "prompt"),
        ({"prompt": []}, "invalid_value", "prompt"),
        ({"prompt": ["x", ""]}, "invalid_value", "prompt.1"),
        ({"prompt": [[1], []]}, "invalid_value", "prompt.1"),
        ({"prompt": [1, 10**6]}, "invalid_value", "prompt"),
        ({"prompt": [-1]}, "invalid_value", "prompt.0"),
        ({"prompt": ["x", 1]}, "invalid_value", "prompt.1"),
        ({"prompt": {"a": 1}}, "invalid_value", "prompt"),
        ({"prompt": ["x"] * 129}, "invalid_value", "prompt"),
        ({"prompt": ["x"] * 100, "n": 2}, "invalid_value", "n"),
        ({"max_tokens": 0}, "invalid_value", "max_tokens"),
        ({"prompt": ["é" * 20_000] * 2, "n": 64, "echo": True, "max_tokens": 0}, "invalid_value", "echo"),
        ({"logprobs": 21}, "invalid_value", "logprobs"),
        ({"logprobs": 20, "max_tokens": 100_000}, "invalid_value", "logprobs"),
        ({"sparkle": 1}, "unknown_parameter", "sparkle"),
        ({"top_logprobs": 2}, "invalid_value", "top_logprobs"),
    ],
)
def test_invalid_requests_name_the_field(client: OpenAI, fields: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(openai.UnprocessableEntityError) as error:
        client.post("/completions", body={"model": MODEL, "prompt": "x", **fields}, cast_to=object)
    assert of(error) == (code, param), error.value.message


@pytest.mark.parametrize(
    ("prompt", "param"), [("x" * 20_001, "prompt"), (["x", "y" * 20_001], "prompt.1"), ([1] * 20_001, "prompt")]
)
def test_a_prompt_that_is_too_long(client: OpenAI, prompt: Any, param: str) -> None:
    """The server of these tests takes messages of 20,000 characters."""
    with pytest.raises(openai.APIStatusError) as error:
        complete(client, prompt)
    assert (error.value.status_code, of(error)[1]) == (413, param)


def test_an_unknown_model(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as error:
        complete(client, "x", model="gpt-3.5-turbo-instruct")
    assert of(error) == ("model_not_found", "model")
