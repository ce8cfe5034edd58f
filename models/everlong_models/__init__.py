"""Transformers with a memory of fixed size. Depends on PyTorch, but not on HTTP or Redis.

Names are imported at their first use, so that a command that needs only an error's type does not wait for PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everlong_models.backbone.backbone import Backbone
    from everlong_models.backbone.cache import Cache, CacheSlots
    from everlong_models.errors import EverlongModelError, GrammarError
    from everlong_models.generate.cuda_graphs import CUDAGraphs, GraphedFunction, ReadGraphs, StepGraphs
    from everlong_models.generate.grammar import Grammar, GrammarCompiler
    from everlong_models.generate.sampling import Sampler, SamplingParams
    from everlong_models.memories.base import MemoryConfig, MemoryModel
    from everlong_models.memories.state import MemoryState, decode_state, encode_state
    from everlong_models.memories.view import MemoryView
    from everlong_models.model import MEMORIES, Model, load_model
    from everlong_models.text.tokenizer import Tokenizer

__all__ = [
    "MEMORIES",
    "Backbone",
    "CUDAGraphs",
    "Cache",
    "CacheSlots",
    "EverlongModelError",
    "Grammar",
    "GrammarCompiler",
    "GrammarError",
    "GraphedFunction",
    "MemoryConfig",
    "MemoryModel",
    "MemoryState",
    "MemoryView",
    "Model",
    "ReadGraphs",
    "Sampler",
    "SamplingParams",
    "StepGraphs",
    "Tokenizer",
    "decode_state",
    "encode_state",
    "load_model",
]

_MODULES = {
    "MEMORIES": "model",
    "Backbone": "backbone.backbone",
    "CUDAGraphs": "generate.cuda_graphs",
    "Cache": "backbone.cache",
    "EverlongModelError": "errors",
    "Grammar": "generate.grammar",
    "GrammarError": "errors",
    "GrammarCompiler": "generate.grammar",
    "MemoryConfig": "memories.base",
    "MemoryModel": "memories.base",
    "MemoryState": "memories.state",
    "MemoryView": "memories.view",
    "Model": "model",
    "ReadGraphs": "generate.cuda_graphs",
    "GraphedFunction": "generate.cuda_graphs",
    "Sampler": "generate.sampling",
    "SamplingParams": "generate.sampling",
    "CacheSlots": "backbone.cache",
    "StepGraphs": "generate.cuda_graphs",
    "Tokenizer": "text.tokenizer",
    "decode_state": "memories.state",
    "encode_state": "memories.state",
    "load_model": "model",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
