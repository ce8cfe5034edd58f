"""`Backbone`: a pretrained Hugging Face decoder with the interface that memories need.

It maps embeddings to final hidden states, with an optional key/value tensor that the caller owns, and keeps nothing
between calls. A memory pays only for the positions that it uses: `keep` selects them, and logits are a separate call.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from everlong_models.backbone import quantised_llama, rotary
from everlong_models.backbone.cache import zeros
from everlong_models.backbone.description import (
    has_fixed_frequencies,
    has_movable_keys,
    rotations_of,
    sliding_window,
    unsupported_reason,
)
from everlong_models.backbone.kv_cursor import KVCursor
from everlong_models.backbone.llama import Llama
from everlong_models.backbone.number_formats.checkpoint import rows_mix
from everlong_models.backbone.observing import Observer, observed
from everlong_models.backbone.quantised_weights import QuantisedWeights
from everlong_models.backbone.recurrent.families import FAMILIES
from everlong_models.errors import BackboneError
from everlong_models.kernels.attention import additive_mask
from everlong_models.kernels.yield_point import yield_point
from everlong_models.parallel import Ranks, whole

_PROBE = 4
"""Tokens with which a model is tried."""
_CAPACITY = 512
"""Length of the cache in the trial. It is longer than the trial's tokens, to detect layers (GPT-Neo's) that take the cache's length for the
position of the last token."""
_CLOSE, _CLOSE_IN_16_BITS = (0.001, 0.001), (0.005, 0.3)
"""How far the logits of all tokens at once, and of a decode step, may differ, as a share of their norm. In a step, rounding to bfloat16
can choose other experts; in float32 the tiny models of the tests differ by less than 0.00001."""
_CAUSAL, _CAUSAL_IF_MIXED = 0.001, 0.1
"""How far the first token's hidden state may differ between two texts; the latter if rows depend on each other (`rows_mix`)."""


class Backbone(nn.Module):
    """A Hugging Face causal language model of any architecture with a cache interface.

    Shapes: B rows, T positions, D = `width`, C = capacity of `kv`. The constructor raises `BackboneError` for a model that
    lacks what a memory needs: an input embedding, an output head, and causal attention with a cache in every layer.

    `quantised`: computes everything with these weights, from the start; those of `model` are then on `meta`. Low-rank updates that
    are attached to `model` count from `optimize` on. `digest`: SHA-256 of the files that the weights come from, if `model` may hold them in
    another layout on each device. `ranks`: the processes that hold `model` together. Then `kv` has the key/value heads of this process only.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        quantised: QuantisedWeights | None = None,
        *,
        digest: str | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        super().__init__()
        config = model.config.get_text_config()
        if model.get_output_embeddings() is None or getattr(model, "base_model", model) is model:
            raise BackboneError(f"{type(model).__name__} is not a causal language model with a separate head")
        if getattr(config, "is_encoder_decoder", False):
            raise BackboneError(f"{type(model).__name__} is an encoder-decoder; a memory needs a decoder-only model")
        self.model, self._digest = model, digest
        try:
            self.layers: int = config.num_hidden_layers
            self.heads: int = config.num_attention_heads
            self.width: int = config.hidden_size
            self.vocab_size: int = config.vocab_size
            self.kv_heads: int = getattr(config, "num_key_value_heads", None) or self.heads
            self.head_dim: int = getattr(config, "head_dim", None) or self.width // self.heads
        except AttributeError as error:
            raise self._unfit(f"its config has no {error.name}") from error
        except RuntimeError as error:  # what transformers raises for a field that differs between layers (Gemma 4)
            raise self._unfit("its layers have heads of different sizes") from error
        self.max_positions: int = getattr(config, "max_position_embeddings", None) or 1 << 30
        self._ranks = ranks
        self._own_kv_heads = self.kv_heads if ranks is None else ranks.own_kv_heads(model, self.kv_heads)
        self._quantised = None if quantised is None else quantised_llama.build(model, quantised, bfloat16=False)
        self._optimised: Llama | None = None
        if self._quantised is None:
            self._probe()
        else:
            self._use(self._quantised.forward)

    def _unfit(self, reason: str) -> BackboneError:
        kind = f"{type(self.model).__name__} ({self.model.config.model_type})"
        instead = "; use the memory `native`" if self.model.config.model_type in FAMILIES else ""
        return BackboneError(
            f"{kind}: {reason}; this memory needs a decoder with causal attention in every layer{instead}"
        )

    @torch.no_grad()
    def _probe(self) -> None:
        """Run some tokens; raise `BackboneError` if the model computes something else than its own forward does.

        No config field tells this. transformers' causal language models include BERT, which is bidirectional unless its config has
        `is_decoder`, decoders in which some layers have no attention, and decoders that need tokens besides embeddings (Gemma 3n).
        """
        training, last, mixed = self.model.training, _PROBE - 1, rows_mix(self.model.config)
        self.model.eval()  # dropout would make the rows differ, and consume random numbers
        tokens = torch.randint(self.vocab_size, (2, _PROBE), generator=torch.Generator().manual_seed(0))
        tokens[1, 0] = tokens[0, 0]
        tokens = tokens.to(self.device)
        try:
            x, kv = self.embed(tokens), self.new_kv(2, min(_CAPACITY, self.max_positions)).fill_(torch.inf)
            one, same = self.hidden(x[:, :last], kv=kv)[:, 0].float()
            if kv[..., :last, :].isinf().any():
                raise self._unfit("not all of its layers keep keys and values")
            if (one - same).norm() > (_CAUSAL_IF_MIXED if mixed else _CAUSAL) * one.norm():
                raise self._unfit("its attention is not causal")
            kv[..., last:, :] = 0  # masked positions are multiplied, too, and 0 × inf is NaN
            expected = self.model(tokens, use_cache=False).logits
            step = self.hidden(x[:, last:], kv=kv, at=torch.tensor([last, last], device=self.device))
            found = self.logits(self.hidden(x)), self.logits(step)
        except BackboneError:
            raise
        except Exception as error:  # models raise all kinds of errors for a cache that is not transformers' own
            raise self._unfit(f"its layers do not take keys and values ({' '.join(str(error).split())})") from error
        finally:
            self.model.train(training)
        limits = _CLOSE if self.dtype.itemsize > 2 and not mixed else _CLOSE_IN_16_BITS
        for logits, wanted, close in zip(found, (expected, expected[:, last:]), limits, strict=True):
            if not (logits - wanted).float().norm() <= close * wanted.float().norm():
                raise self._unfit("its logits do not follow from embeddings, keys, values and its head alone")

    def optimize(self, *, quantize: bool = False, bfloat16: bool = False) -> str | None:
        """Switch `hidden` and `logits` to a fast inference path, permanently: same results, no gradients.

        `quantize`: decode steps (`hidden` of T = 1 with `at`, and `logits` of (B, D)) use weights of four or eight bits
        (`QuantisedMatrix`) if the processor supports it, and `kv` stores 16 bits, which prefills with `at` then read, too.
        `bfloat16`: prefill rounds activations to bfloat16, where the processor supports it (see `Linear`). With one copy
        of the weights, prefill rounds them to 8 bits instead if the processor has AVX-512 VNNI but no AMX, and the model is
        at least `quantised_llama.LEAST_WIDTH` wide. `quantize` and `bfloat16` change results slightly.

        Moves the weights out of `model` into the layout that the machine multiplies fastest. `model` can no longer be
        saved, loaded or trained: doing so raises `BackboneError`. Returns None on success. If the fast path does not
        support something about the model, returns what that is and changes nothing.
        """
        if self._quantised is not None:
            self._quantised = quantised_llama.build(self.model, self._quantised.weights, bfloat16=bfloat16)
            self._optimised = self._quantised.forward
        if self._optimised is None:
            if reason := "tensor parallelism" if self.shared else unsupported_reason(self.model):
                return reason
            self.model.eval().requires_grad_(False)
            self._use(Llama.of(self.model, quantize=quantize, bfloat16=bfloat16))
        return None

    def _use(self, forward: Llama) -> None:
        self._optimised = forward
        self.kv_heads = self._own_kv_heads = (
            forward.shape.kv_heads
        )  # transformers copies the keys of Falcon to all heads
        self.model.register_state_dict_pre_hook(_refuse_saving)
        self.model.register_load_state_dict_pre_hook(_refuse_loading)

    @property
    def optimized(self) -> bool:
        """Whether `optimize` has succeeded. Then no pass waits for the device; transformers' own read positions from it."""
        return self._optimised is not None

    @property
    def shared(self) -> bool:
        """Whether several processes hold the model together. Then PyTorch's own operations compute it."""
        return self._ranks is not None

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return torch.device("cpu") if self._quantised else self.model.get_input_embeddings().weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights; of the hidden states if the weights are quantised."""
        return torch.float32 if self._quantised else self.model.get_input_embeddings().weight.dtype

    @property
    def digest(self) -> str | None:
        """SHA-256 of the files that quantised weights come from; None for a model that holds its weights as tensors."""
        return self._quantised.weights.digest if self._quantised else self._digest

    def embedding_std(self) -> float:
        """Return the standard deviation of the embedding table: the natural scale of input vectors."""
        if self._quantised:
            return self._quantised.embedding.std()
        return float(whole(self.model.get_input_embeddings().weight.detach()).float().std())

    def new_kv(self, rows: int, capacity: int) -> Tensor:
        """Return an empty key/value tensor (rows, layers, 2, kv heads, capacity, head dim) of the dtype that `hidden` needs.

        The dtype has 16 bits if decoding is quantised.
        """
        shape = (rows, self.layers, 2, self._own_kv_heads, capacity, self.head_dim)
        like = torch.empty(
            0, dtype=self.dtype if self._optimised is None else self._optimised.cached, device=self.device
        )
        return zeros(shape, like)

    def own_heads(self, tensor: Tensor) -> Tensor:
        """Return the key/value heads that this process computes, of all those in `tensor` (B, L, kv heads, …)."""
        return tensor if self._ranks is None else self._ranks.own_heads(tensor, self._own_kv_heads)

    def all_heads(self, tensor: Tensor) -> Tensor:
        """Return the key/value heads of all processes; `tensor` (B, L, own heads, …) has those of this one."""
        return tensor if self._own_kv_heads == self.kv_heads or not self._ranks else self._ranks.all_heads(tensor)

    @property
    def can_evict(self) -> bool:
        """Whether `evict` supports this model's position encoding."""
        return has_movable_keys(self.model.config)

    def frequencies(self) -> list[Tensor | None]:
        """Return each layer's rotary frequencies (r/2,), in radians per position; None for a layer without. Call it only if `can_evict`."""
        rotations, of_layers = rotations_of(self.model)
        each = rotations.frequencies()
        return [each[rotation] for rotation in of_layers]

    def evict(self, kv: Tensor, start: int, count: int, end: int) -> None:
        """Remove the positions [start, start + count) from `kv`, which is filled up to `end`, in place.

        Later positions move down and are attended to as if they had been computed there; what they learnt from the
        removed ones stays. Call it only if `can_evict`.
        """
        rotary.evict(kv, self.frequencies(), start, count, end)

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the token embeddings (B, T, D) of `tokens` (B, T)."""
        return self._quantised.embedding(tokens) if self._quantised else self.model.get_input_embeddings()(tokens)

    def hidden(
        self,
        x: Tensor,
        *,
        kv: Tensor | None = None,
        at: Tensor | None = None,
        keep: int | None = None,
        observer: Observer | None = None,
    ) -> Tensor:
        """Return the final hidden states (after the last norm) of embeddings `x` (B, T, D) under the causal mask.

        Without `at`, `x` starts at position 0, and its keys and values are stored in `kv`, if one is given. With `at`
        (B,) each row continues at its own position, after the positions that `kv` holds for it. `keep`: return only the
        last `keep` positions, (B, keep, D); default all. `observer`: see `Observer`.
        """
        if self._optimised is not None:
            if torch.is_grad_enabled() and x.requires_grad:
                raise BackboneError("hidden: an optimized backbone has no gradients; use torch.no_grad or load it anew")
            return self._optimised.hidden(x, kv, at, keep, observer)
        cursor = KVCursor(x.shape[1], x.device, kv, at)
        arguments: dict[str, Any] = {}
        if kv is not None:
            arguments["past_key_values"] = CacheAdapter(cursor)
        if not cursor.at_start:
            arguments |= {"position_ids": cursor.positions, "attention_mask": self._masks(cursor, x.dtype)}
        yield_point()
        with nullcontext() if observer is None else observed(self.model, observer):
            out = self.model.base_model(inputs_embeds=x, use_cache=kv is not None, **arguments).last_hidden_state
        return out if keep is None else out[:, -keep:]

    @property
    def exact_step(self) -> int | None:
        """The n such that a pass after a multiple of n stored positions gives the same bits as one pass over all positions; None if none is known.

        Both passes must have more than `SHORT` positions.
        """
        if (
            self._optimised is None
            or self._ranks is not None
            or not has_fixed_frequencies(self.model.config.get_text_config())
        ):
            return None
        return self._optimised.exact_step

    @property
    def can_verify_guesses(self) -> bool:
        """Whether `steps` computes what single steps do, up to rounding. False if rows of a product depend on each other (LLM.int8()), or the
        rotation of a position depends on later ones of its pass (`longrope`)."""
        config = self.model.config
        quantised = self._optimised is not None and self._optimised.decoding is not None
        return not rows_mix(config) and (quantised or has_fixed_frequencies(config.get_text_config()))

    def steps(self, x: Tensor, kv: Tensor, at: Tensor) -> Tensor:
        """Return what T calls of `hidden` with one position each return, (B, T, D), for embeddings `x` (B, T, D) from the positions `at` (B,).

        Reads the weights once. With quantised decoding the result, and what `kv` then holds, is the same bit for bit; otherwise up to
        rounding, as in a batch of other rows.
        """
        return self.hidden(x, kv=kv, at=at) if self._optimised is None else self._optimised.steps(x, kv, at)

    def _masks(self, cursor: KVCursor, dtype: torch.dtype) -> Tensor | dict[str, Tensor]:
        """Return the mask (B, 1, T, C) for transformers' layers, or one for each kind if only some have a sliding window."""

        def mask(visible: Tensor) -> Tensor:
            if self.model.config._attn_implementation != "eager":
                return visible[:, None]
            return additive_mask(
                visible[:, None], dtype, torch.finfo(dtype).min
            )  # eager attention adds it to the scores

        visible, config = cursor.visible(), self.model.config.get_text_config()
        window = sliding_window(config)
        kinds = set(getattr(config, "layer_types", None) or ["sliding_attention"])
        if window is None or "sliding_attention" not in kinds:
            return mask(visible)
        near = mask(cursor.visible(window))
        return near if len(kinds) == 1 else {"full_attention": mask(visible), "sliding_attention": near}

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits (…, V) of final hidden states (…, D), as the model's own forward computes them."""
        if self._optimised is not None:
            return self._optimised.logits(hidden)
        config = self.model.config
        scores: Tensor = self.model.get_output_embeddings()(hidden)
        scores = scores * (getattr(config, "logit_scale", None) or 1.0) / getattr(config, "logits_scaling", 1.0)
        cap = getattr(config, "final_logit_softcapping", None)
        return scores if cap is None else torch.tanh(scores / cap) * cap


def _refuse_saving(model: nn.Module, prefix: str, keep_vars: bool) -> None:
    raise BackboneError("an optimized backbone has no weights to save; save before optimize() or load it anew")


def _refuse_loading(model: nn.Module, state_dict: Mapping[str, Tensor], prefix: str, *_: object) -> None:
    if any(name.startswith(prefix) for name in state_dict):
        raise BackboneError("an optimized backbone takes no weights; load them before optimize()")


class CacheAdapter:
    """Presents a `KVCursor` to transformers' attention layers as one of transformers' caches."""

    is_compileable = False

    def __init__(self, cursor: KVCursor) -> None:
        self._cursor = cursor

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Store keys and values (B, kv heads, T, head dim). Returns all that the queries may attend to."""
        return self._cursor.store(layer, keys, values)

    def get_seq_length(self, layer: int = 0) -> int:
        """Return 0: transformers calls this only if no positions were given, so at the start."""
        return 0

    def get_query_offset(self, layer: int = 0) -> int:
        """Like `get_seq_length`."""
        return 0

    def get_mask_sizes(self, query_length: int, layer: int) -> tuple[int, int]:
        """Return the keys' length and offset at the start."""
        return query_length, 0
