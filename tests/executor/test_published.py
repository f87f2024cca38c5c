"""Published weights in and out: against the plain model, under names written out by hand."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
from safetensors.torch import load_file, save_file

from executor.errors import WeightsError
from executor.groups import ProcessGroups
from executor.published.checkpoint import FILE, INDEX, checkpoint_of, opened
from executor.published.config import CONFIG, config_of
from executor.published.names import published
from executor.published.parameter import parted
from executor.published.reading import published_values
from executor.published.writing import export
from executor.train import Trainer
from tests.examples import slow
from tests.executor import hugging_face
from tests.executor.ranks import TIMEOUT_S, on_ranks
from tests.executor.test_parity import ADAMW, BATCH, TINY, batches, reference, start
from tests.executor.test_parity_experts import MIXTRAL
from tests.executor.test_parity_latent import V3
from tests.executor.test_parity_models import SCALINGS, TOGETHER
from tests.messages import assert_names, names
from workload.descriptions.hugging_face import model_from_config
from workload.gpt import GPT, find_model
from workload.lowering import lower
from workload.models.rope_scaling import ORIGINAL, spelled_out
from workload.plan import Plan
from workload.plan_text import parse_plan

LLAMA = TOGETHER["Llama"]
ROUTED = replace(MIXTRAL, ffn=MIXTRAL.moe.expert_ffn)
DEEPSEEK = V3.changed(head_width=0, rope_width=4, norm_eps=1e-6)
MODELS = {
    "GPT-2": TINY,
    "untied GPT-2": replace(TINY, tied=False),
    "Llama": LLAMA,
    "tied Llama": replace(LLAMA, tied=True),
    "Qwen2": LLAMA.changed(qkv_bias=True, norm_eps=1e-6, rope_scaling=SCALINGS[2]),
    "Qwen3": LLAMA.changed(qk_norm=True, norm_eps=1e-6, rope_scaling=SCALINGS[1]),
    "Mixtral": ROUTED,
    "Qwen3-MoE": ROUTED.changed(qk_norm=True, router="softmax", dense_layers=1, expert_ffn=16),
    "DeepSeek-V3": DEEPSEEK.changed(
        router_groups=4,
        router_topk_groups=2,
        router_bias=True,
        rope_scaling=f"{SCALINGS[2]}:mscale_all_dim=0.7",
    ),
    "DeepSeek-V2": DEEPSEEK.changed(q_rank=0, router="softmax", dense_layers=0),
    "DeepSeek-V2 of groups": DEEPSEEK.changed(
        router="softmax", router_groups=4, router_topk_groups=2
    ),
}
TWO_WAY = "pp=2,schedule=dualpipe,mbs=4"
PLANS = ("tp=2", "z=2,zero=0", "dp=2,zero=3", "pp=2", TWO_WAY)
LARGER = (
    "tp=2,y=2,z=2",
    "tp=2,pp=2,dp=2,zero=2",
    "y=2,z=2,dp=2,zero=1",
    "z=2,dp=4,shard=2,zero=3",
    "tp=2,z=2,pp=2,order=pp-dp-z-y-tp",
    "tp=2,dp=2,pp=2,mbs=2,recompute=full",
    "tp=2,dp=2,pp=2,mbs=2,schedule=dualpipe,zero=1",
)
OF_EXPERTS = (
    "dp=4,ep=2,zero=1",
    "tp=2,dp=2,ep=4,etp=1,sp=true,zero=2",
    "tp=2,dp=2,ep=2,sp=true",
    "z=2,dp=2,ep=2,zero=3",
    "y=2,dp=2,ep=2",
    "pp=2,dp=2,ep=2,order=tp-pp-dp",
    "pp=2,dp=2,ep=2,schedule=dualpipe,mbs=2,zero=1",
    "cp=2,dp=2,ep=2",
)
LATENTS = ("y=2", "cp=2")  # which split no latents
SMALL_FILES = 20_000  # bytes, so that an export has several files


def by_hand(gpt: GPT) -> dict[str, torch.Tensor]:
    weights = start(gpt)
    if gpt.activation == "gelu":
        return hugging_face.as_gpt2(weights)
    return hugging_face.as_llama(weights, gpt.layers, gpt.width, gpt.attention.heads)


def back(folder: Path, gpt: GPT) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
    if gpt.activation == "gelu":
        return hugging_face.from_gpt2(tensors, gpt.layers)
    return hugging_face.from_llama(tensors, gpt.layers, gpt.attention.heads)


def trained(rank: int, gpt: GPT, plans: list[Plan], source: str, target: str) -> list[list[float]]:
    """The losses of runs from a checkpoint, each exported into a folder of its own."""
    groups, found = ProcessGroups(rank, TIMEOUT_S), []
    for number, plan in enumerate(plans):
        program = lower(gpt, plan, plan.grid.coordinates(rank)["pp"])
        device = torch.device("cpu")
        trainer = Trainer(program, groups, rank=rank, device=device, adamw=ADAMW)
        trainer.start_from(published_values(program, Path(source)))
        found.append([step.loss for step in trainer.run(batches(gpt, BATCH)).steps])
        folder = Path(target) / str(number)
        folder.mkdir(exist_ok=True)
        export(trainer, folder, None, lambda: None, file_bytes=SMALL_FILES * (1 + number % 2 * 99))
    return found


def check(ranks: int, name: str, texts: tuple[str, ...], folder: Path) -> None:
    gpt = MODELS[name]
    source, target = folder / "in", folder / "out"
    source.mkdir()
    target.mkdir()
    save_file(by_hand(gpt), source / FILE)
    known = [
        each for each in texts if not (gpt.latent.kv_rank and any(map(each.__contains__, LATENTS)))
    ]
    plans = [parse_plan(f"{text},precision=fp64", batch=BATCH) for text in known]
    found = on_ranks(ranks, trained, gpt, plans, str(source), str(target))
    losses, weights = reference(gpt, BATCH)
    for number, (plan, own) in enumerate(zip(plans, found, strict=True)):
        assert own == pytest.approx(losses, rel=1e-9), plan
        exported = back(target / str(number), gpt)
        assert exported.keys() == weights.keys()
        for key, tensor in exported.items():
            torch.testing.assert_close(tensor, weights[key], rtol=1e-7, atol=1e-9, msg=key)
        assert (target / str(number) / INDEX).exists() == (number % 2 == 0)


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("name", "plans"),
    [
        ("GPT-2", PLANS[:3:2]),
        *slow(("GPT-2", PLANS), ("Llama", PLANS), ("Qwen3", PLANS), ("Mixtral", PLANS)),
    ],
)
def test_from_published_weights_it_trains_and_publishes_as_the_plain_model_does(
    name: str, plans: tuple[str, ...], tmp_path: Path
) -> None:
    check(2, name, plans, tmp_path)


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", MODELS)
def test_every_kind_of_plan_reads_and_publishes_weights(name: str, tmp_path: Path) -> None:
    check(8, name, LARGER, tmp_path)


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("name", ["Mixtral", "Qwen3-MoE", "DeepSeek-V2", "DeepSeek-V3"])
def test_every_split_of_experts_reads_and_publishes_weights(name: str, tmp_path: Path) -> None:
    check(4, name, OF_EXPERTS, tmp_path)


@pytest.mark.parametrize("name", MODELS)
def test_whole_parameters_come_from_files_and_go_back(name: str, tmp_path: Path) -> None:
    gpt, tensors = MODELS[name], by_hand(MODELS[name])
    save_file(tensors, tmp_path / FILE)
    found = dict(published_values(lower(gpt, parse_plan("precision=fp64", batch=1)), tmp_path))
    weights, where, again = start(gpt), published(gpt), dict[str, torch.Tensor]()
    assert found.keys() == weights.keys()
    for key, tensor in weights.items():
        assert torch.equal(found[key], tensor), key
        again |= dict(parted(found[key], where[key]))
    zeros = [each for one in where.values() for each, _ in one.zeros]
    assert again.keys() == {*tensors, *zeros}
    for key in again:
        assert torch.equal(again[key], tensors.get(key, torch.zeros_like(again[key]))), key


def test_several_files_are_read_by_their_index(tmp_path: Path) -> None:
    tensors = by_hand(LLAMA)
    names = list(tensors)
    places = {name: f"part-{i % 2}.safetensors" for i, name in enumerate(names)}
    for file in set(places.values()):
        save_file({name: tensors[name] for name in names if places[name] == file}, tmp_path / file)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": places}))
    program = lower(LLAMA, parse_plan("", batch=1))
    found = dict(published_values(program, tmp_path))
    for name, tensor in start(LLAMA).items():
        assert torch.equal(found[name], tensor.to(torch.float32)), name
    assert found.keys() == program.layouts.keys()


def saved(folder: Path, gpt: GPT, change: Callable[[dict[str, Any]], Any], **config: Any) -> Path:
    """A checkpoint with something changed, and a config if any of it is given."""
    tensors = by_hand(gpt)
    change(tensors)
    save_file(tensors, folder / FILE)
    if config:
        document = {**config_of(gpt, "fp32", None), **config}
        (folder / CONFIG).write_text(json.dumps(document))
    return folder


def refused(folder: Path, gpt: GPT) -> str:
    with pytest.raises(WeightsError) as error:
        checkpoint_of(folder, gpt)
    return str(error.value).removeprefix(str(folder)).lstrip("/: ")


UP = "model.layers.1.mlp.up_proj.weight"


def _set(name: str, value: torch.Tensor) -> Callable[[dict[str, Any]], Any]:
    return lambda tensors: tensors.update({name: value})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda t: t.pop(UP), [UP]),
        (_set("model.x.weight", torch.ones(2)), ["model.x.weight"]),
        (
            _set("model.layers.0.mlp.experts.0.w1.weight", torch.ones(2)),
            ["model.layers.0.mlp.experts.0.w1.weight", "experts"],
        ),
        (_set(UP, torch.ones(32, 64)), [UP, "32 x 64", "64 x 32"]),
        (
            _set(UP, torch.ones(64, 32, dtype=torch.int8)),
            [UP, "I8", "F64", "F32", "BF16", "F16"],
        ),
    ],
)
def test_tensors_that_are_not_the_models_are_refused_by_name(
    change: Callable[[dict[str, Any]], Any], named: list[str], tmp_path: Path
) -> None:
    assert_names(refused(saved(tmp_path, LLAMA, change), LLAMA), *named)


@pytest.mark.parametrize(
    ("gpt", "config", "named"),
    [
        (
            LLAMA,
            {"rms_norm_eps": 1e-6},
            ["norm_eps=1e-06", "norm_eps=1e-05"],
        ),
        (
            LLAMA,
            {"rope_scaling": {"rope_type": "linear", "factor": 2}},
            ["rope_scaling=linear:factor=2", "rope_scaling=none", "MODEL"],
        ),
        (LLAMA, {"rope_parameters": {"rope_type": "dynamic"}}, ["rope_parameters"]),
        (LLAMA, {"rope_scaling": {"partial_rotary_factor": 0.5}}, ["rope_scaling"]),
        (LLAMA, {"model_type": "qwen2"}, ["qkv_bias=True", "qkv_bias=False"]),
        (LLAMA, {"model_type": "qwen3"}, ["qk_norm=True", "qk_norm=False"]),
        (LLAMA, {"attention_bias": True}, ["biases"]),
        (LLAMA, {"model_type": "olmo2"}, ["olmo2"]),
        (LLAMA, {"partial_rotary_factor": 0.5}, ["RoPE"]),
        (
            LLAMA,
            {"rope_theta": 10_000},
            ["rope_base=10000", "rope_base=500"],
        ),
        (
            LLAMA,
            {"model_type": "mistral", "sliding_window": 8},
            ["window=8", "window=0"],
        ),
        (ROUTED, {"num_experts_per_tok": 3}, ["topk=3", "topk=2"]),
        (ROUTED, {"router_jitter_noise": 0.1}, ["router_jitter_noise", "0.1"]),
        (ROUTED, {"output_router_logits": True}, ["output_router_logits", "True"]),
        (
            MODELS["Qwen3-MoE"],
            {"norm_topk_prob": True},
            ["router=softmax-topk", "router=softmax"],
        ),
        (
            MODELS["Qwen3-MoE"],
            {"mlp_only_layers": []},
            ["dense_layers=0", "dense_layers=1"],
        ),
        (DEEPSEEK, {"n_group": 4}, ["router_groups=4", "router_groups=0"]),
        (DEEPSEEK, {"rope_interleave": False}, ["rope_interleave", "False"]),
        (DEEPSEEK, {"norm_topk_prob": False}, ["norm_topk_prob", "False"]),
        (DEEPSEEK, {"v_head_dim": 6}, ["context_width=48", "context_width=40"]),
        (
            DEEPSEEK,
            {"rope_scaling": {"type": "yarn", "factor": 40, ORIGINAL: 4096}},
            ["rope_scaling=yarn:factor=40"],
        ),
        (TINY, {"n_head": 4}, ["heads=4", "heads=8"]),
        (TINY, {"activation_function": "gelu"}, ["activation_function", "gelu"]),
        (TINY, {"scale_attn_weights": False}, ["scale_attn_weights", "False"]),
    ],
)
def test_a_config_of_another_function_is_refused(
    gpt: GPT, config: dict[str, Any], named: list[str], tmp_path: Path
) -> None:
    assert_names(refused(saved(tmp_path, gpt, lambda _: None, **config), gpt), *named)


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert_names(refused(empty, TINY), FILE, INDEX)
    file = tmp_path / "cut.safetensors"
    file.write_bytes((saved(tmp_path, TINY, lambda _: None) / FILE).read_bytes()[:-8])
    assert_names(refused(file, TINY), "safetensors")
    with pytest.raises(WeightsError, check=names("missing.safetensors", os.strerror(errno.ENOENT))):
        checkpoint_of(tmp_path / "missing.safetensors", TINY)
    for name in ("../b.safetensors", "b\0.safetensors"):
        (empty / INDEX).write_text(json.dumps({"weight_map": {"a": name}}))
        assert_names(refused(empty, TINY), INDEX, "b")
    with pytest.raises(WeightsError, check=names("mpt-7b", "alibi")):
        checkpoint_of(tmp_path, find_model("mpt-7b"))


def test_a_panic_of_the_library_is_said_of_its_file_and_an_interrupt_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Panic(BaseException):
        """As pyo3's, which is no Exception."""

    for raised, expected in ((Panic("index out of range"), WeightsError), *_ENDS):

        def broken(*_: object, error: BaseException = raised, **__: object) -> None:
            raise error

        monkeypatch.setattr(safetensors, "safe_open", broken)
        (tmp_path / FILE).write_bytes(b"x")
        with pytest.raises(expected) as caught, opened(tmp_path / FILE, "pt"):
            pytest.fail("it was opened")
        assert FILE in str(caught.value) or expected is not WeightsError


_ENDS = [(KeyboardInterrupt(), KeyboardInterrupt), (SystemExit(3), SystemExit)]


def test_the_bare_model_and_masks_are_read_and_a_false_head_is_not(tmp_path: Path) -> None:
    """The released GPT-2 has no prefix, and the causal mask of each layer beside its weights."""
    mask = torch.ones(1, 1, TINY.sequence, TINY.sequence)
    bare = {name.removeprefix("transformer."): t for name, t in by_hand(TINY).items()}
    save_file({**bare, "h.0.attn.bias": mask}, tmp_path / FILE)
    program = lower(TINY, parse_plan("", batch=1))
    assert dict(published_values(program, tmp_path)).keys() == program.layouts.keys()
    save_file({**bare, "lm_head.weight": bare["wte.weight"].clone()}, tmp_path / FILE)
    dict(published_values(program, tmp_path))
    save_file({**bare, "lm_head.weight": bare["wte.weight"] + 1}, tmp_path / FILE)
    with pytest.raises(WeightsError, check=names("lm_head.weight")):
        dict(published_values(program, tmp_path))


def test_biases_of_a_router_must_be_zero(tmp_path: Path) -> None:
    name = "model.layers.1.mlp.gate.e_score_correction_bias"
    for value, folder in ((0.0, tmp_path / "zeros"), (0.1, tmp_path / "ones")):
        folder.mkdir()
        saved(folder, DEEPSEEK, _set(name, torch.full((DEEPSEEK.moe.experts,), value)))
    program = lower(DEEPSEEK, parse_plan("", batch=1))
    assert dict(published_values(program, tmp_path / "zeros")).keys() == program.layouts.keys()
    with pytest.raises(WeightsError, check=names(name)):
        dict(published_values(program, tmp_path / "ones"))


def test_a_longer_table_of_positions_is_cut(tmp_path: Path) -> None:
    gpt = replace(TINY, sequence=8)
    saved(tmp_path, TINY, lambda _: None, n_positions=16)
    found = dict(published_values(lower(gpt, parse_plan("", batch=1)), tmp_path))
    assert torch.equal(found["position.w"], start(TINY)["position.w"][:8].to(torch.float32))
    longer = replace(TINY, sequence=17)
    assert_names(refused(tmp_path, longer), "16 x 32", "17 x 32")


@pytest.mark.parametrize("name", MODELS)
def test_a_written_config_describes_the_model(name: str) -> None:
    gpt = MODELS[name]
    read = model_from_config(config_of(gpt, "bf16", None), "it", name="")
    same = gpt.changed(rope_scaling=spelled_out(gpt.attention.rope_scaling))
    assert replace(read.gpt, name=gpt.name, source=gpt.source) == same
    assert {note.field for note in read.notes} == {"sequence"}
    assert read.beyond == ()


def test_every_parameter_of_a_model_is_published_once() -> None:
    for name in ("gpt2", "llama-3.2-1b", "mistral-7b", "mixtral-8x7b", "deepseek-v2-lite"):
        gpt = find_model(name)
        where = published(gpt)
        elements = sum(
            torch.Size(shape).numel() for each in where.values() for shape in each.shapes
        )
        assert elements == gpt.parameters
        names = [each for one in where.values() for each in one.names]
        assert len(set(names)) == len(names)
