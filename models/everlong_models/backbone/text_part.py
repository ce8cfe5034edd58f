"""Load only the decoder of a model that also reads pictures, and map the names of its layers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM

_TEXT_NAMES = {r"^(model\.)?language_model\.(model\.)?(?!lm_head)": "model.", r"^language_model\.lm_head": "lm_head"}
"""Names of weights in models that also read pictures → in the decoder alone."""
_NAMED_LAYERS = ("modules_to_not_convert", "modules_to_convert", "ignored_layers", "ignore")
"""Fields of a quantisation's config with names of layers."""


def text_name(name: str) -> str:
    """Return the name of a layer or weight in the decoder alone."""
    for pattern, replacement in _TEXT_NAMES.items():
        name = re.sub(pattern, replacement, name)
    return name


def text_part(folder: Path) -> dict[str, Any]:
    """Return arguments that load only the decoder of a model that also reads pictures; none if transformers loads a decoder anyway."""
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    text, decoders = config.get_text_config(), AutoModelForCausalLM._model_mapping
    whole = decoders.get(type(config), None)
    if text is config or type(text) not in decoders or not (whole is None or "ConditionalGen" in whole.__name__):
        return {}
    text.tie_word_embeddings = bool(config.tie_word_embeddings or text.tie_word_embeddings)
    if (quantised := getattr(config, "quantization_config", None)) is not None:
        text.quantization_config = {
            field: [text_name(each) for each in value] if field in _NAMED_LAYERS and value else value
            for field, value in quantised.items()
        }
    return {"config": text, "key_mapping": _TEXT_NAMES}
