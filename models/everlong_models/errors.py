"""All errors of the models.

EverlongModelError
├── ConfigError            invalid configuration: names the field, its value and the limit
├── BackboneError          a backbone that cannot be found, read or used
│   └── PullError          a model that cannot be downloaded
├── AdapterError           memory weights that are damaged, contain NaN, or do not match the model
├── RecipeError            a training recipe that cannot be read, or has a wrong key or value
├── RunError               a training run that cannot be resumed, or whose loss became NaN
├── DataError              a data set that is missing, unreadable, empty or damaged
├── GrammarError           a JSON schema that is invalid, not supported, or too expensive
├── TokenError             token ids outside the vocabulary, or a token tensor of the wrong shape
└── StateError             a stored memory state that must not be used
    ├── StateTruncated     bytes are missing (or left over)
    ├── StateAltered       the checksum does not match
    ├── StateVersion       a format version that this library does not know
    ├── StateOfOtherModel  written by a model with another fingerprint
    ├── StateShape         names, shapes or types of tensors differ from the model's
    └── StateNotFinite     a tensor contains NaN or infinity
"""


class EverlongModelError(Exception):
    """Base of all errors raised by `everlong_models`."""


class ConfigError(EverlongModelError, ValueError):
    """An invalid configuration. `field`: the wrong field; `value`: its value; `limit`: what is allowed."""

    def __init__(self, field: str, value: object, limit: str) -> None:
        super().__init__(f"{field}={value!r}: {limit}")
        self.field = field
        self.value = value
        self.limit = limit


class BackboneError(EverlongModelError):
    """A backbone that cannot be found, read or used."""


class PullError(BackboneError):
    """A model that cannot be downloaded: names every source tried, and what was wrong."""


class AdapterError(EverlongModelError):
    """Memory weights that do not match the model, are damaged, or contain NaN or infinity."""


class RecipeError(EverlongModelError):
    """A training recipe that cannot be read, or has a wrong key or value: names the file, the key and the limit."""


class RunError(EverlongModelError):
    """A training run that cannot be resumed or written, or whose loss became NaN."""


class DataError(EverlongModelError):
    """A data set that is missing, unreadable, empty or damaged: names the file, and the line if there is one."""


class GrammarError(EverlongModelError, ValueError):
    """A JSON schema that is invalid, not supported, or too expensive to follow."""


class TokenError(EverlongModelError, ValueError):
    """Token ids outside the vocabulary, or a token tensor of the wrong shape."""


class StateError(EverlongModelError):
    """A stored memory state that must not be used."""


class StateTruncated(StateError):
    """Bytes are missing, or there are more than the header states."""


class StateAltered(StateError):
    """The checksum does not match the bytes."""


class StateVersion(StateError):
    """The state has a format version that this library does not know."""


class StateOfOtherModel(StateError):
    """The state was written by a model with another fingerprint."""


class StateShape(StateError):
    """Names, shapes or types of the state's tensors differ from the model's."""


class StateNotFinite(StateError):
    """A tensor of the state contains NaN or infinity."""
