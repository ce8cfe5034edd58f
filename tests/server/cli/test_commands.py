"""`everlong serve --help`, `models`, `doctor`, `bench` as typed by a person."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from everlong_client.cli.main import app
from everlong_client.cli.plugins import COMMANDS, _command
from everlong_server.doctor import run_checks
from everlong_server.process.serving import serve_forever
from everlong_server.settings import Settings
from everlong_server.store.search.word_index import require_search
from tests.process import everlong


def test_serve_help_names_every_setting() -> None:
    done = everlong("serve", "--help", COLUMNS="200")
    assert done.returncode == 0, done.stderr
    for name in Settings.model_fields:
        assert f"--{name.replace('_', '-')}" in done.stdout, name


def test_serve_with_a_wrong_setting_ends_with_one_line() -> None:
    done = everlong("serve", "--port", "99999")
    assert done.returncode == 1
    assert "--port (EVERLONG_PORT)" in done.stderr
    assert "Traceback" not in done.stderr


def test_serve_with_a_wrong_model_ends_with_one_line(tmp_path: Path) -> None:
    done = everlong("serve", "--port", "0", "--model", str(tmp_path), "--data-dir", str(tmp_path / "d"))
    assert done.returncode == 1
    assert "config.json" in done.stderr
    assert "Traceback" not in done.stderr


def test_models_list_and_path(tiny_model: Path, tmp_path: Path) -> None:
    done = everlong("models", "list", "--models-dir", str(tmp_path), COLUMNS="200")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("(default here)") == 1
    for name in ("qwen2.5-coder-0.5b-instruct", "qwen2.5-coder-1.5b-instruct", "smollm2-135m-reader", "Apache-2.0"):
        assert name in done.stdout
    done = everlong("models", "list", "--models-dir", str(tmp_path), "--json")
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    large, reader = rows["qwen2.5-coder-1.5b-instruct"], rows["smollm2-135m-reader"]
    assert (large["here"], large["path"], large["bytes"], large["licence"]) == (
        False,
        None,
        1_117_320_768,
        "Apache-2.0",
    )
    assert (reader["here"], Path(reader["path"]).name) == (True, "smollm2-135m-reader")
    adapters = rows["qwen2.5-coder-1.5b-reader"]  # its backbone's file is missing
    assert (adapters["here"], adapters["path"]) == (False, None)
    assert large["bytes"] < adapters["bytes"] < 1.02 * large["bytes"]
    done = everlong("models", "pull", "qwen2.5-coder-0.5b", "--models-dir", str(tmp_path))
    assert done.returncode == 1
    assert "Did you mean qwen2.5-coder-0.5b-instruct?" in done.stderr
    done = everlong("models", "pull", "smollm2-135m-reader", "--models-dir", str(tmp_path))
    assert done.returncode == 0, done.stderr
    done = everlong("models", "path", str(tiny_model / "backbone"))
    assert done.stdout.strip() == str(tiny_model / "backbone")
    done = everlong("models", "path", "smollm2-135m-reader", "--models-dir", str(tmp_path))
    assert (Path(done.stdout.strip()) / "everlong.json").is_file()
    done = everlong("models", "path", "./nowhere.gguf")
    assert done.returncode == 1
    assert "no GGUF file" in done.stderr


@pytest.mark.long
def test_doctor_finds_what_is_wrong(tmp_path: Path) -> None:
    fine = {
        "EVERLONG_DATA_DIR": str(tmp_path),
        "EVERLONG_MODELS_DIR": str(tmp_path),
        "EVERLONG_PORT": "0",
        "COLUMNS": "200",
    }
    done = everlong("doctor", **fine)
    assert done.returncode == 0, done.stdout
    done = everlong("doctor", **fine | {"EVERLONG_REDIS_URL": "redis://127.0.0.1:1/0"})
    assert done.returncode == 1
    assert "wrong" in done.stdout
    done = everlong("doctor", **fine | {"EVERLONG_MODEL": "nobody/knows-it"})
    assert done.returncode == 1
    assert "everlong models pull nobody/knows-it" in done.stdout
    done = everlong("doctor", **fine | {"EVERLONG_MODEL": "smollm2"})
    assert done.returncode == 1
    assert "Did you mean" in done.stdout
    done = everlong("doctor", **fine | {"EVERLONG_MODEL": "smollm2-135m-instruct+nobody/adapter"})
    assert done.returncode == 1
    assert "no adapter 'nobody/adapter'" in done.stdout


def test_square_brackets_in_names_and_paths_are_printed_as_they_are(tiny_model: Path, tmp_path: Path) -> None:
    models = tmp_path / "[mine] :key:"
    models.mkdir()
    (models / "tiny").symlink_to(tiny_model)
    done = everlong("models", "path", "tiny", "--models-dir", str(models))
    assert done.stdout.strip() == str(models / "tiny"), done.stderr
    done = everlong("models", "list", "--models-dir", str(models), COLUMNS="300")
    assert str(models / "tiny") in done.stdout, done.stderr
    where = {"EVERLONG_DATA_DIR": str(tmp_path / "d"), "EVERLONG_MODELS_DIR": str(models), "COLUMNS": "300"}
    assert everlong("keys", "create", "--tenant", "ann", "--name", "[old] [/] :key:", **where).returncode == 0
    done = everlong("keys", "list", **where)
    assert "[old] [/] :key:" in done.stdout, done.stderr
    done = everlong("doctor", **where, EVERLONG_PORT="0")
    assert f"{models.resolve()}, " in done.stdout, done.stderr


def test_a_sqlite_without_fts5_is_reported(tmp_path: Path, monkeypatch, capsys) -> None:
    def without_search(*_: object) -> sqlite3.Connection:
        connection = sqlite3.Connection(":memory:")
        connection.set_authorizer(
            lambda action, *_: sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_CREATE_VTABLE else sqlite3.SQLITE_OK
        )
        return connection

    assert require_search() == sqlite3.sqlite_version
    monkeypatch.setattr(sqlite3, "connect", without_search)
    settings = Settings(data_dir=tmp_path, models_dir=tmp_path, port=0)
    (finding,) = [finding for finding in run_checks(settings) if finding.name == "search"]
    assert not finding.ok
    assert "cannot index passages" in finding.detail
    assert "FTS5" in finding.detail
    assert serve_forever(settings) == 1
    assert "FTS5" in capsys.readouterr().err


@pytest.mark.long
def test_bench_flat_says_the_same_to_people_and_programs(tmp_path: Path) -> None:
    file = tmp_path / "flat.json"
    done = everlong("bench", "flat", "--quick", "--json", str(file), COLUMNS="200")
    assert done.returncode == 0, done.stderr
    document = json.loads(file.read_text())
    assert document.keys() >= {"machine", "command", "rows", "targets"}
    assert len(document["rows"]) >= 2
    assert len({row["state_bytes"] for row in document["rows"]}) == 1
    for target in document["targets"]:
        assert target.keys() >= {"name", "value", "target", "met"}
        assert target["name"] in done.stdout
    assert everlong("bench", "nothing").returncode == 2


def test_bench_chaos_names_unknown_arguments() -> None:
    done = everlong("bench", "chaos", "--fault", "bad weather")
    assert done.returncode == 1
    assert "unknown fault 'bad weather'" in done.stderr
    assert "clock of a replica jumps" in done.stderr
    done = everlong("bench", "chaos", "--redis-program", "no-such-server")
    assert done.returncode == 1
    assert "no-such-server" in done.stderr
    done = everlong("bench", "chaos", "--model", "/nonexistent")
    assert (done.returncode, done.stderr) == (1, "error: --model /nonexistent: no such folder\n")


@pytest.mark.long
def test_bench_chaos_without_a_replica_ends_with_one_line(tmp_path: Path) -> None:
    done = everlong("bench", "chaos", "--model", str(tmp_path))  # where there is no model
    assert done.returncode == 1
    assert done.stderr.startswith("error: a replica ended: ")
    assert "config.json" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_server_opens_as_many_files_as_it_may() -> None:
    """Each connection needs an open file, and shells allow 1,024 or fewer by default."""
    code = (
        "import resource; from everlong_server.process.serving import _raise_files;"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, 1000)); _raise_files();"
        "print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["1000", "1000"]


def test_serve_help_lists_every_setting_in_plain_types() -> None:
    done = everlong("serve", "--help", COLUMNS="200")
    assert done.returncode == 0, done.stderr
    for name in Settings.model_fields:
        assert f"--{name.replace('_', '-')}" in done.stdout
    assert "keys|off" in done.stdout
    assert "None" not in done.stdout
    assert "lambda" not in done.stdout
    assert done.stdout.index("--model ") < done.stdout.index("--tenant-bytes ")


def test_serve_refuses_an_unknown_flag_in_one_line() -> None:
    done = everlong("serve", "--nonsense", "3")
    assert done.returncode == 1
    assert done.stderr == "error: unrecognized arguments: --nonsense 3; see `everlong serve --help`\n"


def test_serve_names_the_flag_that_a_mistyped_one_is_near_to() -> None:
    done = everlong("serve", "--modle=x", "--prot", "3")
    assert done.returncode == 1
    assert done.stderr.startswith("error: unrecognized arguments: --modle=x --prot 3. Did you mean --model and --port?")


def test_a_backup_of_a_folder_without_data_is_refused(tmp_path: Path) -> None:
    """Most likely the folder is not the server's, and nobody would notice the empty backup."""
    done = everlong("backup", str(tmp_path / "b"), "--data-dir", str(tmp_path / "typo"))
    assert done.returncode == 1
    assert f"there is nothing to back up: {tmp_path / 'typo/redis'} does not exist" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_restore_names_the_file_that_does_not_exist(tmp_path: Path) -> None:
    done = everlong("restore", str(tmp_path / "none"), EVERLONG_DATA_DIR=str(tmp_path / "data"))
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        1,
        f"error: {tmp_path / 'none'}: No such file or directory",
    )


def _arguments(command: Any) -> Iterator[tuple[str, str | None]]:
    """Yield the name of each command with the metavar of each of its arguments."""
    for each in getattr(command, "commands", {}).values():
        yield from _arguments(each)
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            yield command.name, parameter.metavar


def test_the_help_of_all_commands_writes_arguments_in_capitals() -> None:
    """As in `[FILE]... QUESTION`: Typer would write the parameter's name."""
    found = list(_arguments(get_command(app)))
    for entry in entry_points(group=COMMANDS):
        found += _arguments(_command(entry.load()))
    assert len(found) > 15
    assert [named for named in found if named[1] is None or named[1] != named[1].upper()] == []
