"""Transformers with a memory of fixed size. PyTorch only: knows nothing of HTTP or Redis.

Names are imported when they are first used: what needs only an error's type, as a command that talks to Redis does, must
not wait for PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everlong_models.backbone import Backbone
    from everlong_models.cache import Cache, Slots
    from everlong_models.errors import EverlongModelError, GrammarError
    from everlong_models.grammar import Grammar, Grammars
    from everlong_models.graphs import CUDAGraphs, ReadGraphs, Recorded, StepGraphs
    from everlong_models.memory import MemoryConfig, MemoryModel
    from everlong_models.model import MEMORIES, Model, load_model
    from everlong_models.sampling import Sampler, SamplingParams
    from everlong_models.state import MemoryState, decode_state, encode_state
    from everlong_models.tokenizer import Tokenizer
    from everlong_models.view import MemoryView

__all__ = [
    "MEMORIES",
    "Backbone",
    "CUDAGraphs",
    "Cache",
    "EverlongModelError",
    "Grammar",
    "GrammarError",
    "Grammars",
    "MemoryConfig",
    "MemoryModel",
    "MemoryState",
    "MemoryView",
    "Model",
    "ReadGraphs",
    "Recorded",
    "Sampler",
    "SamplingParams",
    "Slots",
    "StepGraphs",
    "Tokenizer",
    "decode_state",
    "encode_state",
    "load_model",
]

_MODULES = {
    "MEMORIES": "model",
    "Backbone": "backbone",
    "CUDAGraphs": "graphs",
    "Cache": "cache",
    "EverlongModelError": "errors",
    "Grammar": "grammar",
    "GrammarError": "errors",
    "Grammars": "grammar",
    "MemoryConfig": "memory",
    "MemoryModel": "memory",
    "MemoryState": "state",
    "MemoryView": "view",
    "Model": "model",
    "ReadGraphs": "graphs",
    "Recorded": "graphs",
    "Sampler": "sampling",
    "SamplingParams": "sampling",
    "Slots": "cache",
    "StepGraphs": "graphs",
    "Tokenizer": "tokenizer",
    "decode_state": "state",
    "encode_state": "state",
    "load_model": "model",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
