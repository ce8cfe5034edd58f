"""The same server serves every memory: read a document, ask about it, continue."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from everlong_models.backbone.loading import load_backbone, load_recurrent
from everlong_models.model import MEMORIES
from everlong_models.weights import Manifest, own_parameters, save_weights
from tests.models.tiny_recurrent import save_recurrent
from tests.tinymodel import STORY, make_tokenizer

SCRATCH = {"segment_length": 32, "vocab_size": 512, "width": 32, "layers": 2, "heads": 2}
SPECS = {
    "rmt": {"segment_length": 32, "memory_tokens": 4},
    "window": {"segment_length": 32, "sinks": 4, "window": 48},
    "compact": {"segment_length": 32, "entries": 48},
    "native": {"segment_length": 32, "sinks": 4, "window": 48},
    "armt": {"segment_length": 32, "memory_tokens": 4, "memory_width": 8},
    "infinite": {"segment_length": 32, "basis": 16, "samples": 16},
    "infinite_sticky": {"name": "infinite", "segment_length": 32, "basis": 16, "samples": 16, "sticky": "independent"},
    "infinite_scratch": {
        "segment_length": 32,
        "vocab_size": 512,
        "width": 32,
        "layers": 2,
        "heads": 2,
        "basis": 16,
        "samples": 16,
    },
    "transformer_xl": SCRATCH,
    "compressive": SCRATCH,
    "lamemo": SCRATCH,
}
# A start takes seconds; RMT's restarts are in test_restart.py, so here those whose state is the most involved.
RESTARTED = ("infinite_sticky", "lamemo", "compressive", "compact", "native")
# The others differ from these by their model alone, whose laws have tests of their own.
USUAL = ("window",)
SAMPLED = {"temperature": 1.0, "top_p": 1, "max_tokens": 70, "ignore_eos": True, "seed": 3}


def folder_of(case: str, tiny_model: Path, target: Path) -> Path:
    """A model folder with random weights."""
    torch.manual_seed(0)
    spec = {"name": case, **SPECS[case]}
    kind = MEMORIES[str(spec["name"])]
    config = kind.config.model_validate({key: value for key, value in spec.items() if key != "name"})
    if kind.recurrent:
        backbone, _ = load_recurrent(str(save_recurrent(target / "backbone", "falcon_h1")), models_dir=target)
        memory, manifest = kind.build(config, backbone), Manifest(backbone="backbone", memory=spec, trained=False)
    elif kind.around:
        shutil.copytree(tiny_model / "backbone", target / "backbone")
        backbone, _ = load_backbone(str(target / "backbone"), models_dir=target)
        memory, manifest = kind.build(config, backbone), Manifest(backbone="backbone", memory=spec, trained=False)
    else:
        memory, manifest = kind.build(config), Manifest(memory=spec, trained=False)
        make_tokenizer().save_pretrained(target)
    with torch.no_grad():  # some start at zero, so as to change nothing before they are trained
        for tensor in own_parameters(memory).values():
            tensor.add_(0.05 * torch.randn(tensor.shape))
    save_weights(target, manifest, memory)
    return target


def test_every_memory_has_a_case() -> None:
    assert {spec.get("name", case) for case, spec in SPECS.items()} == set(MEMORIES)


@pytest.mark.parametrize(
    "case", [case if case in USUAL else pytest.param(case, marks=pytest.mark.long) for case in SPECS]
)
def test_a_memory_is_served(case: str, new_server, tiny_model: Path, tmp_path: Path) -> None:
    server = new_server(folder_of(case, tiny_model, tmp_path / case)).start()
    model = server.http.get("/v1/models").json()["data"][0]
    assert model["memory"] == SPECS[case].get("name", case)
    assert model["memory_trained"] in ((True,) if case == "native" else (False, None))
    text = STORY.read_text()[:6000]
    document = server.read(text)
    session, twin = server.session(document["id"]), server.session(document["id"])
    assert session["state_bytes"] == model["state_bytes"] > 0
    seen = server.http.get(f"/v1/sessions/{session['id']}/memory").json()
    assert (seen["memory"], seen["bytes"]) == (model["memory"], session["state_bytes"])
    assert seen["tokens"] + seen["open"] == session["position"]
    assert seen["parts"]
    assert all(part["used"] > 0 for part in seen["parts"])
    assert bool(seen["layers"]) == case.startswith("infinite")
    first = server.say(session["id"], "Who is Alice?", **SAMPLED)
    assert first["usage"]["completion_tokens"] == 70  # across two segment borders
    after = server.get_session(session["id"])
    assert after["state_bytes"] == model["state_bytes"]
    assert after["state_digest"] != document["state_digest"]
    if case in RESTARTED:
        server.kill9()
        server.start()
        assert server.get_session(session["id"]) == after
    assert server.say(twin["id"], "Who is Alice?", **SAMPLED)["content"] == first["content"]
    assert server.read(text)["state_digest"] == document["state_digest"]
    server.check_keys()
