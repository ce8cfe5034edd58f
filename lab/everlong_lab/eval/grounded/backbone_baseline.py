"""`BackboneBaseline`: answers of the backbone alone, from as much of a document's end as its positions hold."""

from __future__ import annotations

import torch

from everlong_models import Model, Sampler, SamplingParams
from everlong_models.backbone.backbone import Backbone
from everlong_server.errors import InvalidRequest

_ROOM = 256
"""Positions reserved for a question and its answer; half of all positions if there are fewer than twice as many."""


class BackboneBaseline:
    """A backbone that has read the end of a document. Its keys and values are computed once for all questions."""

    def __init__(self, model: Model, text: str, positions: int) -> None:
        """`positions`: maximum to use, at most the backbone's. Raises `InvalidRequest` if the model has no backbone."""
        backbone = getattr(model.memory, "backbone", None)
        if not isinstance(backbone, Backbone):
            raise InvalidRequest(f"floor: model {model.name!r} is from scratch and has no backbone; leave out floor")
        self._model, self._backbone = model, backbone
        positions = min(positions, backbone.max_positions)
        self._room = min(_ROOM, positions // 2)
        chat = model.chat
        end = model.tokenizer.encode(text)[-max(1, positions - self._room - len(chat.head) - len(chat.separator)) :]
        self._read = [*chat.head, *end, *chat.separator]
        self._kv = backbone.new_kv(1, positions)
        with torch.inference_mode():
            backbone.hidden(self._embedded(self._read), kv=self._kv, keep=1)

    def answer(self, question: str, params: SamplingParams) -> str:
        """Return the answer to `question`, sampled as by the server. Earlier questions are not seen."""
        model, backbone = self._model, self._backbone
        tokens = [*model.tokenizer.encode(question), *model.chat.ask][-max(1, self._room - params.max_tokens) :]
        sampler = Sampler(params, params.seed or 0, [], backbone.vocab_size)
        at, count, stream, text = len(self._read), 0, model.tokenizer.text_stream(), ""
        with torch.inference_mode():
            while count < params.max_tokens:
                hidden = backbone.hidden(self._embedded(tokens), kv=self._kv, at=torch.tensor([at]), keep=1)
                at += len(tokens)
                token = sampler.sample(backbone.logits(hidden)[0, -1])
                if token in model.tokenizer.eos_ids:
                    break
                text += stream.feed(token)
                tokens, count = [token], count + 1
        return text + stream.finish()

    def _embedded(self, tokens: list[int]) -> torch.Tensor:
        return self._backbone.embed(torch.tensor([tokens], device=self._backbone.device))
