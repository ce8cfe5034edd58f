"""`Learner`: the model that a recipe trains: a memory, its backbone, the weights that learn, and how they are saved."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase
from transformers.pytorch_utils import Conv1D

from everlong_lab.train.recipe import Adapters, LearnerRecipe, ScratchBackbone
from everlong_models.backbone.backbone import Backbone
from everlong_models.backbone.loading import Progress, architecture, load_backbone, load_tokenizer
from everlong_models.errors import ConfigError, RunError
from everlong_models.memories.base import SegmentReader
from everlong_models.model import MEMORIES, memory_config
from everlong_models.naming import find_model
from everlong_models.text.tokenizer import Tokenizer
from everlong_models.weights import Manifest, load_updates, load_weights, read_manifest, save_weights

_BACKBONE = "backbone"


@dataclass(slots=True)
class Learner:
    """`memory`: the module to train, on its device. `hf_tokenizer`: the tokenizer of its inputs.

    `parameters`: the weights that learn, by name, in float32; all others are frozen.
    """

    recipe: LearnerRecipe
    memory: SegmentReader
    hf_tokenizer: PreTrainedTokenizerBase
    parameters: dict[str, nn.Parameter]

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, wrapped as the models use it."""
        return Tokenizer(self.hf_tokenizer)

    @property
    def backbone(self) -> Backbone | None:
        """The backbone; None for a memory from scratch."""
        backbone = getattr(self.memory, "backbone", None)
        return backbone if isinstance(backbone, Backbone) else None

    def save(self, folder: Path, description: str) -> None:
        """Write a model folder for `load_model`, atomically. Raises `RunError`; the previous folder then stays."""
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".saving-") as scratch:
                new, old = Path(scratch) / "model", Path(scratch) / "old"
                self._write(new, description)
                if folder.exists():
                    folder.rename(old)
                try:
                    new.rename(folder)
                except OSError:
                    if old.exists():
                        old.rename(folder)
                    raise
        except Exception as error:  # on a full disk safetensors and tokenizers raise errors of their own
            raise RunError(f"cannot write the model to {folder}: {error}") from error

    def _write(self, folder: Path, description: str) -> None:
        recipe, backbone = self.recipe, self.backbone
        name: str | None = None
        if backbone is None:
            self.hf_tokenizer.save_pretrained(folder)
        elif isinstance(recipe.backbone, str) and recipe.learn == "memory":
            name = recipe.backbone
        else:
            name = _BACKBONE
            backbone.model.save_pretrained(folder / _BACKBONE)
            self.hf_tokenizer.save_pretrained(folder / _BACKBONE)
        config = self.memory.config.model_dump(mode="json")  # type: ignore[union-attr, operator]
        adapters = recipe.adapters
        manifest = Manifest(
            backbone=name,
            memory={"name": recipe.memory, **config},
            lora_scale=adapters.alpha / adapters.rank if adapters else 1.0,
            description=description,
            template=recipe.template,
        )
        # A model published around a backbone holds little more than low-rank updates: bfloat16 halves it.
        lora: dict[str, Tensor] | None = None
        if adapters and backbone:
            lora = {name: parameter.to(torch.bfloat16) for name, parameter in _updates(backbone).items()}
        save_weights(folder, manifest, self.memory, lora, dtype=torch.bfloat16 if lora else None)


def make_learner(
    recipe: LearnerRecipe,
    *,
    made_tokenizer: PreTrainedTokenizerBase | None,
    models_dir: Path,
    device: torch.device,
    seed: int,
    started: bool = False,
    bfloat16: bool = False,
    progress: Progress = lambda message: None,
) -> Learner:
    """Build the model that a recipe describes. Its random weights follow from `seed`, unless its options have a seed.

    (RMT and ARMT start with the same weights for every seed; only the weights that learn around them differ.)
    `made_tokenizer`: for a model from scratch. `started`: the weights will be loaded, so ignore `recipe.start`. `bfloat16`: keep
    frozen weights in it. Raises `ConfigError`, `BackboneError`.
    """
    if recipe.adapters is not None and recipe.learn == "all":
        raise ConfigError("learner.learn", recipe.learn, "must be 'memory' with adapters: the backbone is frozen")
    if recipe.memory not in MEMORIES:
        raise ConfigError("learner.memory", recipe.memory, f"must be one of {', '.join(sorted(MEMORIES))}")
    kind = MEMORIES[recipe.memory]
    if kind.recurrent:
        raise ConfigError("learner.memory", recipe.memory, "cannot be trained here: the model comes with it")
    options = _seed_option(recipe, seed, models_dir) | recipe.options
    torch.manual_seed(seed)
    backbone, tokenizer = _backbone(recipe, made_tokenizer, models_dir, device, bfloat16, progress)
    if not kind.around:
        options.setdefault("vocab_size", len(tokenizer))
    config = memory_config(recipe.memory, options)
    memory = (kind.build(config, backbone) if kind.around else kind.build(config)).to(device)
    if backbone is not None:
        backbone.model.requires_grad_(recipe.learn == "all")
        _adapt(backbone, recipe.adapters)
    if not started:
        _start(recipe, memory, Tokenizer(tokenizer), models_dir)
    learning = {name: parameter for name, parameter in memory.named_parameters() if parameter.requires_grad}
    if not learning:
        raise ConfigError("learner.memory", recipe.memory, "has no weights to train")
    for parameter in learning.values():
        parameter.data = parameter.data.float()
    return Learner(recipe, memory, tokenizer, learning)


def _seed_option(recipe: LearnerRecipe, seed: int, models_dir: Path) -> dict[str, Any]:
    """Return the `seed` option of a memory that has one; it is the starting model's, if there is one."""
    if "seed" not in MEMORIES[recipe.memory].config.model_fields:
        return {}
    start = {} if recipe.start is None else read_manifest(find_model(recipe.start, models_dir)).memory
    return {"seed": start.get("seed", seed)}


def _backbone(
    recipe: LearnerRecipe,
    made_tokenizer: PreTrainedTokenizerBase | None,
    models_dir: Path,
    device: torch.device,
    bfloat16: bool,
    progress: Progress,
) -> tuple[Backbone | None, PreTrainedTokenizerBase]:
    """Return the recipe's backbone, if its memory is around one, and the tokenizer. Raises `ConfigError`, `BackboneError`."""
    around, backbone = MEMORIES[recipe.memory].around, recipe.backbone
    if not around and (backbone is not None or recipe.adapters is not None):
        raise ConfigError("learner.backbone", backbone, f"must be left out: memory {recipe.memory} has its own weights")
    if around and backbone is None:
        raise ConfigError("learner.backbone", None, f"must be a name or sizes for memory {recipe.memory}")
    if isinstance(backbone, str):
        # Frozen weights may be bfloat16. Weights that learn must be float32, or small steps would be lost.
        dtype = torch.bfloat16 if bfloat16 and recipe.learn != "all" else torch.float32
        loaded, tokenizer = load_backbone(
            backbone, models_dir=models_dir, device=device, dtype=dtype, progress=progress
        )
        return loaded, tokenizer.to_hf()
    if backbone is not None and (recipe.adapters is not None or recipe.learn != "all"):
        raise ConfigError("learner.learn", recipe.learn, "must be 'all', without adapters: the backbone is random")
    assert made_tokenizer is not None
    if backbone is None:
        return None, made_tokenizer
    return Backbone(_llama(backbone, len(made_tokenizer)).to(device)), made_tokenizer


def _start(recipe: LearnerRecipe, memory: SegmentReader, tokenizer: Tokenizer, models_dir: Path) -> None:
    """Load the weights of the model `recipe.start`, if there is one. Raises `ConfigError` if its learner differs."""
    if recipe.start is None:
        return
    start, folder = recipe.start, find_model(recipe.start, models_dir)
    manifest, backbone = read_manifest(folder), getattr(memory, "backbone", None)

    def differs(what: str, its: object, ours: object) -> ConfigError:
        return ConfigError("learner.start", start, f"its {what} is {its}, the recipe's is {ours}")

    def require_same(what: str, its: dict[str, Any], ours: dict[str, Any]) -> None:
        if keys := sorted(key for key in its.keys() | ours.keys() if its.get(key) != ours.get(key)):
            key = "name" if "name" in keys else keys[0]
            raise differs(f"{what}'s {key}", its.get(key), ours.get(key))

    own = {"name": recipe.memory, **memory.config.model_dump(mode="json")}  # type: ignore[union-attr, operator]
    require_same("memory", manifest.memory, own)
    if isinstance(recipe.backbone, str) and recipe.learn == "memory":
        if manifest.backbone != recipe.backbone:
            raise differs("backbone", manifest.backbone, recipe.backbone)
        its_tokenizer = tokenizer
    elif backbone is None:
        its_tokenizer = load_tokenizer(folder)
    elif manifest.backbone is None or not (folder / manifest.backbone).is_dir():
        raise differs("backbone", manifest.backbone, "one that learns with the memory")
    else:
        its_backbone, its_tokenizer = load_backbone(
            str(folder / manifest.backbone), models_dir=models_dir, dtype=torch.float32
        )
        # Only a saved config names its class.
        sizes = (json.loads(architecture(each)) | {"architectures": None} for each in (its_backbone, backbone))
        require_same("backbone", *sizes)
        backbone.model.load_state_dict(its_backbone.model.state_dict())
    if its_tokenizer.digest() != tokenizer.digest():
        raise differs("tokenizer", "another one", "made from this data")
    if not load_weights(folder, memory, None, 1.0, updates=False):
        raise differs("weights file", "missing", "read from it")
    adapters = _updates(backbone) if recipe.adapters and backbone else {}
    _load_adapters(recipe, load_updates(folder), manifest.lora_scale, adapters)


def _load_adapters(recipe: LearnerRecipe, its: dict[str, Tensor], scale: float, ours: dict[str, nn.Parameter]) -> None:
    """Copy the adapters `its` to `ours`, by name. Raises `ConfigError` if they differ in shape or scale."""
    found = {name: tuple(tensor.shape) for name, tensor in its.items()}
    wanted = {name: tuple(parameter.shape) for name, parameter in ours.items()}
    adapters = recipe.adapters
    if found != wanted or (adapters and scale != adapters.alpha / adapters.rank):
        raise ConfigError(
            "learner.start", recipe.start,
            f"its adapters (scale {scale:g}; {next(iter(found.items()), 'none')}, …) differ from the recipe's "
            f"({next(iter(wanted.items()), 'none')}, …)",
        )  # fmt: skip
    for name, parameter in ours.items():
        parameter.data.copy_(its[name])


def _llama(sizes: ScratchBackbone, vocabulary: int) -> LlamaForCausalLM:
    if sizes.width % (2 * sizes.heads):
        raise ConfigError("learner.backbone.width", sizes.width, f"must be a multiple of 2·heads = {2 * sizes.heads}")
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=sizes.width,
        intermediate_size=sizes.feed_forward,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.heads,
        max_position_embeddings=sizes.positions,
        tie_word_embeddings=True,
        initializer_range=sizes.initial_std,
        bos_token_id=0,
        eos_token_id=0,
    )
    return LlamaForCausalLM(config)


def _adapt(backbone: Backbone, adapters: Adapters | None) -> None:
    if adapters is None:
        return
    try:
        from peft import LoraConfig, inject_adapter_in_model  # noqa: PLC0415 - the library serves without it
    except ImportError as error:
        raise ConfigError(
            "learner.adapters", adapters.rank, f"need peft ({error}): pip install 'everlong-lab[train]'"
        ) from error
    layers = [(name, module) for name, module in backbone.model.base_model.named_modules()]
    linear = {name.rpartition(".")[2] for name, module in layers if isinstance(module, nn.Linear | Conv1D)}
    if not linear:
        raise ConfigError("learner.adapters", adapters.rank, "the backbone has no linear layers for adapters")
    count = backbone.model.config.get_text_config().num_hidden_layers
    if adapters.first_layer >= count:
        raise ConfigError(
            "learner.adapters.first_layer",
            adapters.first_layer,
            f"must be less than the {count} layers of the backbone",
        )
    config = LoraConfig(
        r=adapters.rank,
        lora_alpha=adapters.alpha,
        lora_dropout=adapters.dropout,
        target_modules=sorted(linear),
        bias="none",
        layers_to_transform=list(range(adapters.first_layer, count)) if adapters.first_layer else None,
        fan_in_fan_out=any(isinstance(module, Conv1D) for _, module in layers),
    )
    inject_adapter_in_model(config, backbone.model)
    for module in backbone.model.modules():
        if hasattr(module, "cast_input_dtype_enabled"):
            module.cast_input_dtype_enabled = False  # autocast would cast the input back down


def _updates(backbone: Backbone) -> dict[str, nn.Parameter]:
    """Return the low-rank updates by the names under which they are saved: `lora.<layer>.A`, `lora.<layer>.B`."""
    found: dict[str, Any] = {}
    for name, module in backbone.model.named_modules():
        if hasattr(module, "lora_A") and "default" in module.lora_A:
            found[f"lora.{name}.A"] = module.lora_A["default"].weight
            found[f"lora.{name}.B"] = module.lora_B["default"].weight
    return found
