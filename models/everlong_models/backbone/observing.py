"""See each layer's queries and keys during a pass, for memories that choose what to keep by the attention it gets."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

Observer = Callable[[int, Tensor, Tensor], None]
"""Called for every layer before its attention, with the layer's index, its queries (B, G, R, T, d), multiplied by the
attention's scale and rotated to their positions, and the keys (B, G, C, d) that are stored so far, those of this pass
included. G kv heads, R query heads per kv head. It must not change them."""

_OBSERVED = "everlong_observed"
_observer: ContextVar[tuple[Observer, str]] = ContextVar("observer")


@contextmanager
def observed(model: PreTrainedModel, observer: Observer) -> Iterator[None]:
    """Call `observer` in every layer of transformers' own forward of `model`."""
    config = model.config
    implementation = config._attn_implementation
    token = _observer.set((observer, implementation))
    config._attn_implementation = _OBSERVED
    try:
        yield
    finally:
        config._attn_implementation = implementation
        _observer.reset(token)


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **arguments: Any
) -> Any:
    """Call the observer, then the attention function that the model is configured with."""
    observer, implementation = _observer.get()
    scale = arguments.get("scaling") or getattr(module, "scaling", None) or query.shape[-1] ** -0.5
    observer(int(getattr(module, "layer_idx")), query.unflatten(1, (key.shape[1], -1)) * scale, key)  # noqa: B009 - not in the type
    eager = sys.modules[type(module).__module__].eager_attention_forward
    attend = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager)
    return attend(module, query, key, value, attention_mask, **arguments)


ALL_ATTENTION_FUNCTIONS.register(_OBSERVED, _attend)
