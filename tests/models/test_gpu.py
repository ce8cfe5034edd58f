"""Every memory on a device other than the CPU: tensors of two devices never mix, and the CPU rarely waits for the device.

Runs on a GPU, or on a stand-in for one (see `pretended`).
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from everlong_models.backbone.backbone import Backbone
from everlong_models.backbone.cache import Cache, CacheSlots
from everlong_models.generate.cuda_graphs import GraphedFunction, ReadGraphs, StepGraphs, _garbage_collection_off
from everlong_models.generate.sampling import (
    Sampler,
    SamplingParams,
    sample_from_logits,
    sample_tokens,
    sample_with_torch,
)
from everlong_models.kernels.gpu import experts_kernel, layer_kernels
from everlong_models.memories.state import MemoryState
from everlong_models.model import MEMORIES, memory_config
from tests.models import tiny_families
from tests.models.fake_gpu import DEVICE, GPU, REAL, Graphs, Interpreted, OnGPU, gpu
from tests.models.memory_contract import tokens
from tests.models.tiny import VOCAB, llama

pytestmark = pytest.mark.long

S = 12
AROUND = {"segment_length": S}
SCRATCH = AROUND | {"vocab_size": VOCAB, "width": 32, "layers": 2, "heads": 2}
OPTIONS = {
    "rmt": AROUND | {"memory_tokens": 3},
    "window": AROUND | {"sinks": 2, "window": 17},
    "compact": AROUND | {"entries": 20, "queries": 7},
    "armt": AROUND | {"memory_tokens": 3},
    "infinite": AROUND | {"basis": 10, "samples": 9, "widths": (0.05, 0.1)},
    "infinite_scratch": SCRATCH,
    "transformer_xl": SCRATCH | {"memory_length": 8},
    "compressive": SCRATCH | {"memory_length": 12},
    "lamemo": SCRATCH | {"memory_length": 8},
}


def built(name: str, device: torch.device | str, *, lean: bool = False):
    kind, config = MEMORIES[name], memory_config(name, dict(OPTIONS[name]))
    torch.manual_seed(0)
    if not kind.around:
        return kind.build(config).double().to(device).eval()
    backbone = llama()
    backbone.model.to(device)
    if lean:
        assert backbone.optimize() is None
    return kind.build(config, backbone).eval()


def script(memory, text: Tensor) -> dict[str, Tensor]:
    """Return everything that a server computes for two rows of 2 S + S tokens, by name."""
    device, done = text.device, {}

    def keep(name: str, state: MemoryState) -> None:
        done.update({f"{name}, {key}": tensor for key, tensor in state.tensors.items()})

    read, rest = text[:, : 2 * S], text[:, 2 * S :]
    with torch.inference_mode():
        state = memory.read(read, memory.initial_state(2))
        keep("read", state)
        slots = CacheSlots()
        for row in state.split():
            cache, logits = memory.open(row, rest[:1, :5])
            slots.add(cache)
        done["opened"] = logits
        for at in range(5, S):
            done[f"step {at}"] = memory.step(slots.rows, rest[:, at])
        keep("closed", memory.close(slots.rows))
        for row, one in enumerate(state.split()):
            after = memory.continue_in_cache(slots.rows.slots(row, row + 1), rest[row : row + 1], one)
            if after is not None:
                keep(f"went on {row}", after)
        one = state.split()[0]
        done["near"] = memory.open_recent(one, rest[:1, :3], 5)[1]
        done["near, without sinks"] = memory.open_recent(one, rest[:1, :3], 5, sinks=False)[1]
        done["forward"] = memory.forward(rest, state)
        done["segment"], after = memory.segment(rest, state)
        keep("segment", after)
        some = torch.tensor([0, 1], device=device), torch.tensor([3, 4], device=device)
        done["at"] = memory.logits_at(text[:, :S], *some)
        assert all(tensor.device == device for tensor in done.values())
        done["kept"] = torch.tensor(memory.kept_tokens(one))
        view = memory.view(one, rest[:1, :3], 2 * S)
        done["view"] = torch.tensor([[part.used, part.age, part.change or 0.0] for part in view.parts])
    return done


WAYS = [
    (name, lean) for name in OPTIONS for lean in ((False, True) if name in ("rmt", "window", "compact") else (False,))
]


@pytest.mark.parametrize(("name", "lean"), WAYS)
def test_results_equal_those_of_a_cpu(name: str, lean: bool) -> None:
    memory = built(name, "cpu", lean=lean)
    text = tokens(memory, 2, 3 * S)
    expected = script(memory, text)
    with gpu():
        there = script(built(name, DEVICE, lean=lean), text.to(DEVICE))
        assert there.keys() == expected.keys()
        for key, tensor in there.items():
            torch.testing.assert_close(
                tensor.cpu(), expected[key], rtol=1e-9, atol=1e-9, msg=lambda text, key=key: f"{key}: {text}"
            )


def test_all_memories_are_tried() -> None:
    # `native` needs a backbone of another kind: its tests are in memories/test_native.py.
    assert OPTIONS.keys() | {"native"} == MEMORIES.keys()


@pytest.mark.parametrize(("name", "lean"), WAYS)
def test_captured_operations_do_not_wait(name: str, lean: bool) -> None:
    """A step of every memory, and a segment of memories that are `graph_capturable`."""
    with gpu(), torch.inference_mode():
        memory = built(name, DEVICE, lean=lean)
        text = tokens(memory, 2, 2 * S).to(DEVICE)
        cache, _ = memory.open(memory.initial_state(2), text[:, :3])
        state = memory.initial_state(2)
        GPU.recording = True
        try:
            memory.step(cache, text[:, 3])
            if memory.graph_capturable:
                memory.read_unchecked(text[:, :S], state)
        finally:
            GPU.recording = False
        assert memory.graph_capturable == (
            name not in ("window", "compact", "infinite", "infinite_scratch") and (lean or name != "rmt")
        )


@pytest.mark.parametrize("name", ["rmt", "armt", "lamemo"])
def test_segments_are_captured(name: str) -> None:
    lean = name == "rmt"
    memory = built(name, "cpu", lean=lean)
    text = tokens(memory, 2, 4 * S)
    with torch.inference_mode():
        expected = memory.read(text, memory.initial_state(2))
        with gpu():
            memory = built(name, DEVICE, lean=lean)
            read, state = ReadGraphs(memory, Graphs(DEVICE)), memory.initial_state(2)
            for segment in text.split(S, dim=1):
                state = read(segment.to(DEVICE), state)
            assert Graphs.made == 1
            for key, tensor in state.tensors.items():
                torch.testing.assert_close(tensor.cpu(), expected[key], rtol=1e-9, atol=1e-9)


def test_steps_are_captured() -> None:
    memory = built("rmt", "cpu", lean=True)
    text, logits = tokens(memory, 3, S), {}
    for device in ("cpu", DEVICE):
        with gpu(), torch.inference_mode():
            memory, slots = built("rmt", device, lean=True), CacheSlots(keep_allocated=True)
            step = StepGraphs(memory.step, Graphs(DEVICE)) if device == DEVICE else None
            for row in text:
                slots.add(memory.open(memory.initial_state(), row[None, :2].to(device))[0])
            for at in range(2, S):
                chosen = text[:, at].to(device)
                logits[str(device), at] = (step(slots, chosen) if step else memory.step(slots.rows, chosen)).clone()
            assert Graphs.made == (device == DEVICE)
            for at in range(2, S):
                torch.testing.assert_close(logits["cpu", at], logits[str(device), at].cpu(), rtol=1e-9, atol=1e-9)


def with_experts(name: str, device: torch.device | str):
    """A memory around a mixture of experts, in float32."""
    kind, config = MEMORIES[name], memory_config(name, dict(OPTIONS[name]))
    torch.manual_seed(0)
    model = tiny_families.model("qwen3_moe-in-part", num_hidden_layers=2).eval()
    tiny_families.randomise(model, 0.2)
    return kind.build(config, Backbone(model.to(device))).eval()


@pytest.fixture
def triton_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's kernels, also on the stand-in."""
    if REAL:
        return
    pytest.importorskip("triton")
    monkeypatch.setattr(layer_kernels, "compiles", lambda _, run: run() or True)
    monkeypatch.setattr(experts_kernel, "MANY", 2)  # both sizes of tiles, with few rows
    for module, names in {layer_kernels: ("_norm_rotate", "_norm_gate"), experts_kernel: ("_multiply",)}.items():
        for name in names:
            monkeypatch.setattr(module, name, Interpreted(getattr(module, name)))


@pytest.mark.parametrize("name", ["rmt", "window", "compact"])
def test_a_mixture_of_experts_is_captured(triton_there: None, name: str) -> None:
    """Segments (of `rmt`) and decode steps of three rows, with what transformers computes on a CPU."""
    plain = with_experts(name, "cpu")
    text = tokens(plain, 3, 2 * S)
    with torch.inference_mode():
        before, caches = plain.read(text[:, :S], plain.initial_state(3)), CacheSlots()
        for row, state in enumerate(before.split()):
            caches.add(plain.open(state, text[row : row + 1, S : S + 2 + row])[0])
        expected = [plain.step(caches.rows, text[:, at]) for at in range(4)]
        with gpu():
            memory = with_experts(name, DEVICE)
            assert memory.backbone.optimize() is None
            state = ReadGraphs(memory, Graphs(DEVICE))(text[:, :S].to(DEVICE), memory.initial_state(3))
            slots, step = CacheSlots(keep_allocated=True), StepGraphs(memory.step, Graphs(DEVICE))
            for row, one in enumerate(state.split()):
                slots.add(memory.open(one, text[row : row + 1, S : S + 2 + row].to(DEVICE))[0])
            found = [step(slots, text[:, at].to(DEVICE)).cpu() for at in range(4)]
            assert Graphs.made == (2 if name == "rmt" else 1)
    for there, here in zip(found, expected, strict=True):
        assert float((there - here).norm() / here.norm()) < 1e-5


@pytest.mark.skipif(REAL, reason="there is a real one")
def test_a_mixture_of_experts_without_triton_is_left_to_transformers() -> None:
    with gpu():
        memory = with_experts("window", DEVICE)
        assert memory.backbone.optimize() == "a mixture of experts on cuda:0 without Triton"
        assert not memory.backbone.optimized


@pytest.mark.skipif(REAL, reason="a real one does not count")
def test_sampling_waits_for_the_device_three_times() -> None:
    """What tells how to draw goes there twice, and what was drawn comes back. The greedy rows' tokens come by themselves."""
    scores = 3 * torch.randn(8, 5000, generator=torch.Generator().manual_seed(0))
    same = [Sampler(SamplingParams(), seed, [], 5000) for seed in range(8)]
    greedy = [Sampler(SamplingParams(temperature=0), seed, [], 5000) for seed in range(8)]
    expected = sample_with_torch(same, scores), sample_with_torch(greedy, scores)
    with gpu():
        draw, there = GraphedFunction(sample_from_logits, Graphs(DEVICE), "sampling"), scores.to(DEVICE)
        for how in (None, draw, draw):
            before = GPU.waits
            assert sample_tokens(same, there, how) == expected[0]
            assert GPU.waits == before + 3
        assert Graphs.made == 1
        before = GPU.waits
        assert sample_tokens(greedy, there, draw) == expected[1]
        assert GPU.waits == before + 1


@pytest.mark.skipif(REAL, reason="there is a real one")
class TestPretended:
    """The stand-in refuses the same operations as a GPU."""

    @pytest.mark.parametrize(
        "mixes",
        [
            lambda there, here: there + here,
            lambda there, here: torch.cat([there, here]),
            lambda there, here: here[there.long()],
            lambda there, here: there.index_put_((torch.tensor([0]),), here[:1]),
            lambda there, here: torch.nn.functional.linear(there, here[None]),
            lambda there, here: there.numpy(),
        ],
    )
    def test_devices_do_not_mix(self, mixes) -> None:
        with gpu(), pytest.raises((RuntimeError, TypeError), match=r"same device|convert"):
            mixes(torch.zeros(3, device=DEVICE), torch.zeros(3))

    @pytest.mark.parametrize(
        "waits",
        [
            lambda there: there.sum().item(),
            lambda there: bool((there > 0).any()),
            lambda there: there.tolist(),
            lambda there: there.cpu(),
            lambda there: there[there > 0],
            lambda there: there.nonzero(),
            lambda there: there + torch.tensor([1.0, 2.0, 3.0], device=DEVICE),
            lambda there: there.copy_(torch.zeros(3)),
            lambda there: there[torch.tensor([0, 2])],
        ],
    )
    def test_operations_that_wait_are_counted_and_cannot_be_captured(self, waits) -> None:
        with gpu():
            there = torch.ones(3, device=DEVICE)
            waits(there)
            assert GPU.waits == 1
            with _garbage_collection_off(), pytest.raises(RuntimeError, match="capturing"):
                Graphs(DEVICE)(lambda: waits(there))

    def test_operations_that_stay_on_the_device_are_not_counted(self) -> None:
        with gpu():
            there = torch.ones(3, device=DEVICE)
            result = there[:2] * 2 + there[torch.zeros(2, dtype=torch.int64, device=DEVICE)] + 1.0
            result += torch.arange(2, device=DEVICE).to(torch.float32)
            assert isinstance(result, OnGPU)
            assert (result.device, GPU.waits) == (DEVICE, 0)
            assert result.tolist() == [4, 5]

    def test_the_stand_in_is_removed_afterwards(self) -> None:
        with gpu():
            torch.zeros(1, device=DEVICE)
        with pytest.raises((AssertionError, RuntimeError)):
            torch.zeros(1, device=DEVICE)


@pytest.mark.skipif(REAL, reason="a real one does not count")
def test_adding_and_removing_rows_does_not_wait() -> None:
    """Add and remove `CacheSlots` without reading lengths."""
    with gpu(), torch.inference_mode():
        memory, slots = built("rmt", DEVICE), CacheSlots(keep_allocated=True)
        text = tokens(memory, 1, S).to(DEVICE)
        rows: list[Cache] = [memory.open(memory.initial_state(), text[:, :length])[0] for length in (1, 4, 7)]
        before = GPU.waits
        for row in rows:
            slots.add(row)
        slots.remove(0)
        assert GPU.waits == before
        assert slots.rows.lengths.tolist() == [7, 4]
