"""Transformers with a memory of fixed size. Depends on PyTorch, but not on HTTP or Redis.

Names are imported at their first use, so that a command that needs only an error's type does not wait for PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everlong_models.answer_probe import AnswerProbe, AnswerProbes
    from everlong_models.backbone.backbone import Backbone
    from everlong_models.backbone.cache import Cache, CacheSlots
    from everlong_models.errors import EverlongModelError, GrammarError
    from everlong_models.generate.cuda_graphs import CUDAGraphs, GraphedFunction, ReadGraphs, StepGraphs
    from everlong_models.generate.grammar import Grammar, GrammarCompiler
    from everlong_models.generate.sampling import Sampler, SamplingParams
    from everlong_models.memories.base import MemoryConfig, SegmentReader
    from everlong_models.memories.state import MemoryState, decode_state, encode_state
    from everlong_models.memories.view import MemoryView
    from everlong_models.model import MEMORIES, Model, load_model
    from everlong_models.text.tokenizer import Tokenizer
    from everlong_models.text.tool_format import Tool, ToolCall, ToolFormat

__all__ = [
    "MEMORIES", "AnswerProbe", "AnswerProbes", "Backbone", "CUDAGraphs", "Cache", "CacheSlots", "EverlongModelError", "Grammar", "GrammarCompiler",
    "GrammarError", "GraphedFunction", "MemoryConfig", "MemoryState", "MemoryView", "Model", "ReadGraphs", "Sampler",
    "SamplingParams", "SegmentReader", "StepGraphs", "Tokenizer", "Tool", "ToolCall", "ToolFormat", "decode_state",
    "encode_state", "load_model",
]  # fmt: skip

_NAMES = {
    "answer_probe": ("AnswerProbe", "AnswerProbes"),
    "backbone.backbone": ("Backbone",),
    "backbone.cache": ("Cache", "CacheSlots"),
    "errors": ("EverlongModelError", "GrammarError"),
    "generate.cuda_graphs": ("CUDAGraphs", "GraphedFunction", "ReadGraphs", "StepGraphs"),
    "generate.grammar": ("Grammar", "GrammarCompiler"),
    "generate.sampling": ("Sampler", "SamplingParams"),
    "memories.base": ("MemoryConfig", "SegmentReader"),
    "memories.state": ("MemoryState", "decode_state", "encode_state"),
    "memories.view": ("MemoryView",),
    "model": ("MEMORIES", "Model", "load_model"),
    "text.tokenizer": ("Tokenizer",),
    "text.tool_format": ("Tool", "ToolCall", "ToolFormat"),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
