"""KVCursor stores keys and values where the pass is, and masks what its queries must not see."""

from __future__ import annotations

import pytest
import torch

from everlong_models.backbone.kv_cursor import KVCursor
from everlong_models.errors import BackboneError
from everlong_models.kernels.attention import additive_mask, causal_mask

CPU = torch.device("cpu")


def keys_values(length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random keys and values (2, 3, `length`, 4)."""
    return torch.randn(2, 3, length, 4), torch.randn(2, 3, length, 4)


def empty() -> torch.Tensor:
    return torch.zeros(2, 2, 2, 3, 7, 4)  # (B, layers, 2, kv heads, C, head dim)


def test_a_pass_without_a_tensor_stores_nothing() -> None:
    keys, values = keys_values(5)
    cursor = KVCursor(5, CPU)
    assert cursor.at_start
    assert cursor.positions.tolist() == [[0, 1, 2, 3, 4]]
    assert cursor.store(0, keys, values) == (keys, values)
    assert torch.equal(cursor.visible()[0], torch.ones(5, 5, dtype=torch.bool).tril())


def test_a_pass_at_the_start_stores_a_prefix_and_sees_itself() -> None:
    kv, (keys, values) = empty(), keys_values(5)
    cursor = KVCursor(5, CPU, kv)
    assert cursor.store(1, keys, values) == (keys, values)
    assert torch.equal(kv[:, 1, 0, :, :5], keys)
    assert torch.equal(kv[:, 1, 1, :, :5], values)
    assert not kv[:, 0].any()
    assert not kv[..., 5:, :].any()
    assert cursor.visible().shape == (1, 5, 5)


def test_rows_continue_at_their_own_positions_and_see_all_before() -> None:
    kv, (keys, values) = empty(), keys_values(2)
    cursor = KVCursor(2, CPU, kv, torch.tensor([3, 5]))
    assert not cursor.at_start
    assert cursor.positions.tolist() == [[3, 4], [5, 6]]
    stored_keys, stored_values = cursor.store(1, keys, values)
    assert stored_keys.data_ptr() == kv[:, 1, 0].data_ptr()
    assert stored_keys.shape == stored_values.shape == (2, 3, 7, 4)
    for row, start in enumerate((3, 5)):
        assert torch.equal(kv[row, 1, 0, :, start : start + 2], keys[row])
        assert torch.equal(kv[row, 1, 1, :, start : start + 2], values[row])
        assert not kv[row, 1, :, :, :start].any()
    assert cursor.visible().sum(-1).tolist() == [[4, 5], [6, 7]]


@pytest.mark.parametrize("at", [None, torch.tensor([3, 5])])
def test_a_pair_is_stored_like_its_keys_and_values(at: torch.Tensor | None) -> None:
    one, other, (keys, values) = empty(), empty(), keys_values(2)
    separate = KVCursor(2, CPU, one, at).store(1, keys, values)
    pair = KVCursor(2, CPU, other, at).store_pair(1, torch.stack([keys, values], dim=1))
    assert torch.equal(one, other)
    assert torch.equal(torch.stack(separate, dim=1), pair)


def test_a_tensor_made_without_gradients_is_written_to_while_they_are_enabled() -> None:
    with torch.no_grad():
        kv = empty() + 0
    keys, values = keys_values(1)
    KVCursor(1, CPU, kv, torch.tensor([0, 1])).store(0, keys.requires_grad_(), values)
    assert torch.equal(kv[1, 0, 0, :, 1], keys[1, :, 0].detach())


def test_other_dtypes_are_stored_in_the_tensors_own() -> None:
    """As under autocast, and in a quantised cache."""
    kv, (keys, values) = empty().half(), keys_values(2)
    KVCursor(2, CPU, kv, torch.tensor([0, 0])).store(0, keys, values)
    assert torch.equal(kv[:, 0, 0, :, :2], keys.half())


def test_continuing_needs_the_tensor() -> None:
    with pytest.raises(BackboneError, match="pass `kv` with `at`"):
        KVCursor(1, CPU, None, torch.tensor([3]))


def test_masks() -> None:
    visible = causal_mask(torch.tensor([[0, 2]]), 4)
    assert visible.tolist() == [[[True, False, False, False], [True, True, True, False]]]
    low = float("-inf")
    assert additive_mask(visible, torch.float32, low).tolist() == [[[0, low, low, low], [0, 0, 0, low]]]
