"""`window` obeys the laws and is the backbone's own attention over sinks, window and open segment."""

from __future__ import annotations

import pytest
import torch

from everlong_models.errors import ConfigError
from everlong_models.window import Window, WindowConfig
from tests.models.laws import Laws, tokens
from tests.models.tiny import FAMILIES, llama


class TestWindow(Laws):
    pauses = 0  # reading is keeping token ids

    @pytest.fixture(params=[(f, s, w) for f in FAMILIES for s, w in ((5, 17), (0, 30), (12, 7))], ids=str)
    def model(self, request):
        family, sinks, window = request.param
        return Window(WindowConfig(segment_length=12, sinks=sinks, window=window), FAMILIES[family]())


@pytest.mark.parametrize("read", [0, 8, 16, 24, 80])
def test_the_answer_is_the_backbones_over_first_and_last_tokens(read):
    model = Window(WindowConfig(segment_length=8, sinks=3, window=10), llama())
    text = tokens(model, 1, read + 5)
    kept = text if read <= 13 else torch.cat([text[:, :3], text[:, read - 10 :]], dim=1)
    state = model.read(text[:, :read], model.initial_state())
    expected = model.backbone.model(kept).logits[:, -1]
    _, logits = model.open(state, text[:, read:])
    torch.testing.assert_close(logits, expected)


def test_what_cannot_work_is_refused_at_construction():
    with pytest.raises(ConfigError, match="sinks=9: must be at most segment_length=8"):
        Window(WindowConfig(segment_length=8, sinks=9), llama())
    with pytest.raises(ConfigError, match="exceeds the backbone's 128 positions"):
        Window(WindowConfig(segment_length=8, sinks=4, window=117), llama())


@pytest.mark.parametrize("newest", [0, 4, 10, 50])
def test_of_the_window_the_newest_can_be_looked_at_alone_and_nothing_is_lost(newest):
    model = Window(WindowConfig(segment_length=8, sinks=3, window=10), llama())
    text = tokens(model, 1, 45)
    state = model.read(text[:, :40], model.initial_state())
    seen = torch.cat([text[:, :3], text[:, 40 - min(newest, 10) :]], dim=1)
    cache, logits = model.open_near(state, text[:, 40:], newest)
    torch.testing.assert_close(logits, model.backbone.model(seen).logits[:, -1])
    token = torch.tensor([7])
    torch.testing.assert_close(
        model.step(cache, token), model.backbone.model(torch.cat([seen, token[:, None]], dim=1)).logits[:, -1]
    )
    whole, _ = model.open(state, text[:, 40:])
    model.step(whole, token)
    assert model.close(cache).digest() == model.close(whole).digest()
