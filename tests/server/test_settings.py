"""Settings come from variables and flags. Unknown ones are refused, and all are documented."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from everlong_server.cli.setting_groups import GROUPS
from everlong_server.settings import Settings, SettingsError, load_settings

SERVER = Path(__file__).parents[2] / "server" / "everlong_server"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith("EVERLONG_"):
            monkeypatch.delenv(name)


def test_variables_and_flags_flags_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERLONG_PORT", "9000")
    monkeypatch.setenv("EVERLONG_MAX_STREAMS", "3")
    settings = load_settings(["--port", "9001", "--data-dir", "/somewhere"])
    assert (settings.port, settings.max_streams, settings.data_dir) == (9001, 3, Path("/somewhere"))


def test_memory_options_are_json() -> None:
    settings = load_settings(["--memory", "rmt", "--memory-options", '{"segment_length": 128}'])
    assert settings.memory_options == {"segment_length": 128}


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("EVERLONG_PROT", "1", "did you mean EVERLONG_PORT"),
        ("EVERLONG_PORT", "70000", "less than or equal to 65535"),
        ("EVERLONG_DRAFT_TOKENS", "16", "less than or equal to 15"),
        ("EVERLONG_MAX_STREAMS", "0", "greater than or equal to 1"),
        ("EVERLONG_READING_SHARE", "1", "less than 1"),
        ("EVERLONG_LOG_LEVEL", "loud", "'debug'"),
        ("EVERLONG_ALLOWED_HOSTS", "books.example.org", 'must be JSON, such as ["one", "two"]'),
        ("EVERLONG_MEMORY_OPTIONS", "segment_length=512", 'must be JSON, such as {"segment_length": 512}'),
        (
            "EVERLONG_OCR_LANGUAGE",
            "klingon",
            "the language must be any, latin, greek, chinese, japanese, or one that takes a model",
        ),
        ("EVERLONG_OCR_LANGUAGE", "cyrillic", "put cyrillic_PP-OCRv5_rec_mobile.onnx of RapidOCR into the folder"),
    ],
)
def test_bad_variables_are_named(monkeypatch: pytest.MonkeyPatch, variable: str, value: str, words: str) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError, match=variable) as caught:
        load_settings([])
    assert words in str(caught.value)


def test_secrets_are_read_from_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "everlong_redis_url").write_text("redis://:secret@redis:6379/0\n")
    (tmp_path / "another-programs").write_text("?")
    monkeypatch.setenv("EVERLONG_SECRETS_DIR", str(tmp_path))
    assert load_settings().redis_url == load_settings([]).redis_url == "redis://:secret@redis:6379/0"
    monkeypatch.setenv("EVERLONG_REDIS_URL", "redis://elsewhere")
    assert load_settings().redis_url == "redis://elsewhere"
    with pytest.raises(SettingsError, match=r"--secrets-dir \(EVERLONG_SECRETS_DIR\)='.*/gone': the folder does"):
        load_settings(["--secrets-dir", str(tmp_path / "gone")])


def test_an_unknown_flag_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises((SettingsError, SystemExit)):
        load_settings(["--prot", "1"])


def test_every_setting_has_a_description() -> None:
    for name, field in Settings.model_fields.items():
        assert field.description, name


def test_only_settings_reads_the_environment() -> None:
    readers = [
        path.name
        for path in [*SERVER.rglob("*.py"), *(SERVER.parents[1] / "models").rglob("*.py")]
        if re.search(r"os\.environ|getenv", path.read_text())
    ]
    assert readers == ["settings.py"]


@pytest.mark.parametrize(
    ("host", "reached"),
    [
        ("127.0.0.1", "127.0.0.1:80"),
        ("0.0.0.0", "127.0.0.1:80"),
        ("::1", "[::1]:80"),
        ("::", "[::1]:80"),
        ("box", "box:80"),
    ],
)
def test_the_address_that_a_server_is_reached_at(host: str, reached: str) -> None:
    assert Settings(host=host).reached_at(80) == reached


def test_every_setting_is_in_one_group() -> None:
    assert sorted(name for group in GROUPS.values() for name in group) == sorted(Settings.model_fields)


def test_the_model_of_a_language_is_looked_for_only_at_the_start(tmp_path: Path) -> None:
    model = tmp_path / "korean_PP-OCRv5_rec_mobile.onnx"
    model.touch()
    settings = Settings(ocr_language="korean", ocr_models=tmp_path)
    assert settings.language.model == model
    model.unlink()
    assert settings.language.model == model, "a request that needs no recognition does not fail"
    with pytest.raises(ValueError, match="the model of 'korean' is missing"):
        Settings(ocr_language="korean", ocr_models=tmp_path)
