"""An observer sees every layer's queries and keys, in transformers' own forward and in the optimised one alike."""

from __future__ import annotations

import pytest
import torch

from tests.models.backbone.test_layers import NAMES, make
from tests.models.tiny import llama


def observe(backbone, start: int = 3, length: int = 5):
    seen = {}

    def observer(layer, queries, keys):
        seen[layer] = queries.clone(), keys[..., : start + length, :].clone()

    kv, at = backbone.new_kv(2, start + length + 4), torch.tensor([start, start])
    x = backbone.embed(torch.arange(2 * length).reshape(2, -1))
    out = backbone.hidden(x, kv=kv, at=at, keep=1, observer=observer)
    return out, seen, kv


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_attention_by_what_is_observed_is_the_layers_own(name):
    """The first layer's context, computed from queries, keys and stored values, gives the values' mixture that the layer uses."""
    backbone = make(name)
    if name == "falcon":  # transformers does not show its queries
        assert backbone.optimize() is None
    plain = backbone.hidden(
        backbone.embed(torch.arange(10).reshape(2, -1)), kv=backbone.new_kv(2, 12), at=torch.tensor([3, 3]), keep=1
    )
    out, seen, kv = observe(backbone)
    assert torch.equal(out, plain)
    assert sorted(seen) == list(range(backbone.layers))
    for layer, (queries, keys) in seen.items():
        assert queries.shape == (2, backbone.kv_heads, backbone.heads // backbone.kv_heads, 5, backbone.head_dim)
        assert torch.equal(keys, kv[:, layer, 0, :, :8])


@torch.no_grad()
def test_the_optimised_forward_shows_the_same():
    plain, fast = llama(torch.float32), llama(torch.float32)
    assert fast.optimize() is None
    (_, expected, _), (_, found, _) = observe(plain), observe(fast)
    for layer, pair in expected.items():
        for one, other in zip(found[layer], pair, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_the_configured_attention_is_restored_after_an_error():
    backbone = llama()
    before = backbone.model.config._attn_implementation
    with torch.no_grad(), pytest.raises(ZeroDivisionError):
        backbone.hidden(
            backbone.embed(torch.zeros(1, 2, dtype=torch.int64)), observer=lambda layer, queries, keys: 1 / 0
        )
    assert backbone.model.config._attn_implementation == before
