"""`Turning`: move keys and queries to other positions, for every family with rotary positions (RoPE, Su et al. 2021)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from everlong_models.backbone.backbone import Backbone, CacheAdapter
from everlong_models.backbone.kv_cursor import KVCursor
from everlong_models.backbone.rotary import turned
from everlong_models.errors import BackboneError

_FAR = 7
"""The probe compares keys at this position with keys at position 0."""


class Turning:
    """Moves heads of a layer by a number of positions: as if they had been computed there.

    Uses the family's own rotation. A probe at construction, before the backbone is optimised, finds layers that have no
    rotary positions. Their heads stay as they are: those of models with learned positions (GPT-2) keep the position that
    they were computed at, and those without positions have none. Raises `BackboneError` for rotary positions that differ
    from layer to layer, or that depend on more than the position.
    """

    def __init__(self, backbone: Backbone) -> None:
        base = backbone.model.base_model
        self._rotary: Any = getattr(base, "rotary_emb", None)
        self._apply: Callable[..., tuple[Tensor, Tensor]] | None = getattr(
            sys.modules[type(base).__module__], "apply_rotary_pos_emb", None
        )
        self._frequencies = backbone.frequencies() if backbone.can_evict else None
        self.layers: tuple[bool, ...] = (
            self._probe(backbone)
            if self._frequencies is None
            else tuple(each is not None for each in self._frequencies)
        )

    @torch.no_grad()
    def _probe(self, backbone: Backbone) -> tuple[bool, ...]:
        """Return for every layer whether it has rotary positions, by its keys at two positions of a text of one token."""
        if self._rotary is None or self._apply is None:
            return (False,) * backbone.layers
        base = backbone.model.base_model
        training = base.training
        base.eval()
        first, far = (self._keys(backbone, position)[:, None] for position in (0, _FAR))  # (layers, 1, G, 1, d)
        base.train(training)
        changes = [not torch.equal(start, end) for start, end in zip(first, far, strict=True)]
        by = torch.tensor([[_FAR]], device=backbone.device)
        try:
            turned = [self._turned(start, by) for start in first]
        except (TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise self._unfit(backbone) from error
        for start, end, moved in zip(first, far, turned, strict=True):
            if not torch.equal(start, end) and (moved - end).norm() > 0.1 * (start - end).norm():
                raise self._unfit(backbone)
        return tuple(changes)

    @staticmethod
    def _unfit(backbone: Backbone) -> BackboneError:
        return BackboneError(
            f"{type(backbone.model).__name__}: this memory moves keys to other positions, which is not supported for the "
            "rotary positions of this architecture; use the memory `window`"
        )

    @staticmethod
    def _keys(backbone: Backbone, position: int) -> Tensor:
        """Return every layer's keys (layers, G, 1, d) of a text of one token at `position`."""
        noise = torch.randn(1, 1, backbone.width, generator=torch.Generator().manual_seed(0))
        kv = backbone.new_kv(1, 1)
        backbone.model.base_model(
            inputs_embeds=0.02 * noise.to(backbone.device, backbone.dtype),
            use_cache=True,
            past_key_values=CacheAdapter(KVCursor(1, backbone.device, kv)),
            position_ids=torch.tensor([[position]], device=backbone.device),
        )
        return kv[0, :, 0]

    def turn(self, layer: int, heads: Tensor, by: Tensor) -> Tensor:
        """Return `heads` (B, H, n, d) of `layer`, moved `by` (B or 1, n) positions, which may be negative.

        The result has at least float32.
        """
        if not self.layers[layer]:
            return heads.to(_exact(heads))
        frequencies = None if self._frequencies is None else self._frequencies[layer]
        return self._turned(heads, by) if frequencies is None else turned(heads, frequencies, by)

    def _turned(self, heads: Tensor, by: Tensor) -> Tensor:
        assert self._apply is not None
        heads = heads.to(_exact(heads))
        cos, sin = self._rotary(heads, position_ids=by)
        scale = getattr(self._rotary, "attention_scaling", 1.0)  # already in the keys
        rotating = cos.shape[-1]  # fewer than the head has, in some families
        part = self._apply(heads[..., :rotating], heads[:, :0, :, :rotating], cos / scale, sin / scale)[0]
        return part if rotating == heads.shape[-1] else torch.cat([part, heads[..., rotating:]], dim=-1)


def _exact(heads: Tensor) -> torch.dtype:
    return torch.promote_types(heads.dtype, torch.float32)
