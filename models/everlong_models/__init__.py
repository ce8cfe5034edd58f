"""Transformers with a memory of fixed size. PyTorch only: knows nothing of HTTP or Redis."""

from everlong_models.backbone import Backbone
from everlong_models.cache import Cache
from everlong_models.errors import EverlongModelError, GrammarError
from everlong_models.grammar import Grammar, Grammars
from everlong_models.memory import MemoryConfig, MemoryModel
from everlong_models.model import MEMORIES, Model, load_model
from everlong_models.sampling import Sampler, SamplingParams
from everlong_models.state import MemoryState, decode_state, encode_state
from everlong_models.tokenizer import Tokenizer
from everlong_models.view import MemoryView

__all__ = [
    "MEMORIES",
    "Backbone",
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
    "Sampler",
    "SamplingParams",
    "Tokenizer",
    "decode_state",
    "encode_state",
    "load_model",
]
