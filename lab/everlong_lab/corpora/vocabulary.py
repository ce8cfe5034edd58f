"""Tokenizers for models from scratch, made from the task's own text and reproducible."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

END = "<|endoftext|>"


def byte_level(texts: Iterable[str], size: int) -> PreTrainedTokenizerBase:
    """Train byte-level BPE of `size` tokens (at least 257: all bytes and the end mark) on `texts`."""
    tokenizer = FastTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=[END], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END)


def symbols(names: Iterable[str]) -> PreTrainedTokenizerBase:
    """Return a tokenizer with one token for each of the `names`, separated by spaces; ids are 0, 1, … in order.

    Any other word becomes the last token, so that a model of symbols can be loaded and served like any other.
    """
    ids = {name: index for index, name in enumerate(names)}
    tokenizer = FastTokenizer(models.WordLevel(ids, unk_token=list(ids)[-1]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)
