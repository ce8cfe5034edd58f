"""Every error that the models raise.

EverlongModelError
├── ConfigError            a configuration that cannot work: names the field, the value and the limit
├── BackboneError          a backbone that cannot be found, read or used
├── AdapterError           memory weights that do not fit, are damaged, or hold NaN
├── RecipeError            a training recipe that cannot be read, or has a wrong key or value
├── RunError               a training run that cannot be resumed, or has gone wrong
├── DataError              a data set that is missing, unreadable, empty or broken
├── GrammarError           a schema that no answer can be made to follow
├── TokenError             token ids outside the vocabulary, or a sequence of the wrong length
└── StateError             a state that must not be used
    ├── StateTruncated     bytes are missing (or left over)
    ├── StateAltered       the checksum does not match
    ├── StateVersion       written in a format this version does not know
    ├── StateOfOtherModel  written by a model with another fingerprint
    ├── StateShape         tensors of other names, shapes or types than the model's
    └── StateNotFinite     NaN or infinity inside
"""


class EverlongModelError(Exception):
    """Base of all errors raised by `everlong_models`."""


class ConfigError(EverlongModelError, ValueError):
    """A configuration that cannot work.

    `field` is the offending field, `value` what it was given, and the message states the limit.
    """

    def __init__(self, field: str, value: object, limit: str) -> None:
        super().__init__(f"{field}={value!r}: {limit}")
        self.field = field
        self.value = value
        self.limit = limit


class BackboneError(EverlongModelError):
    """A backbone that cannot be found, read or used."""


class AdapterError(EverlongModelError):
    """Memory weights that do not fit the model, are damaged, or are not finite."""


class RecipeError(EverlongModelError):
    """A training recipe that cannot be read, or has a wrong key or value: names the file, the key and the limit."""


class RunError(EverlongModelError):
    """A training run that cannot be resumed or written, or whose loss is not a number any more."""


class DataError(EverlongModelError):
    """A data set that is missing, unreadable, empty or broken: names the file, and the line if there is one."""


class GrammarError(EverlongModelError, ValueError):
    """A schema that is wrong, not supported, or more than a token may cost."""


class TokenError(EverlongModelError, ValueError):
    """Token ids outside the vocabulary, or a token tensor of the wrong shape."""


class StateError(EverlongModelError):
    """A state that must not be used."""


class StateTruncated(StateError):
    """Bytes are missing, or there are more than the header promises."""


class StateAltered(StateError):
    """The checksum does not match the bytes."""


class StateVersion(StateError):
    """Written in a format version that this library does not know."""


class StateOfOtherModel(StateError):
    """Written by a model with another fingerprint."""


class StateShape(StateError):
    """Tensors of other names, shapes or types than the model's."""


class StateNotFinite(StateError):
    """NaN or infinity in a tensor of the state."""
