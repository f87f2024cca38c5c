"""`simgpt run --from-weights --export-weights`: from folder to folder, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from executor.published import conversion
from executor.published.config import config_of
from tests.executor import hugging_face
from tests.executor.test_parity import start
from tests.messages import assert_names
from tests.simgpt.face import Said, simgpt
from workload.gpt import GPT, find_model


def run(model: str, *words: str) -> Said:
    given = (model, "--steps", "2", "--batch", "4", "--no-predict", "--timeout", "250")
    return simgpt("run", *given, *words)


@pytest.mark.slow
@pytest.mark.distributed
def test_a_run_goes_on_from_what_another_run_left(tmp_path: Path) -> None:
    """Steps of rate 0 leave a model whose loss on the same batches is the same."""
    first, second = str(tmp_path / "new" / "first"), str(tmp_path / "second")
    plan = ("--plan", "z=2,precision=fp32", "--json")
    one = run("tiny-30k", *plan, "--export-weights", first, "--lr", "1e-2")
    assert one.status == 0, one.err
    assert_names(one.err, first)
    model = f"{first}/config.json"
    two = run(model, *plan, "--from-weights", first, "--export-weights", second, "--lr", "0")
    file = f"{second}/model.safetensors"
    three = run("tiny-30k", "--from-weights", file, "--plan", "precision=fp32", "--json")
    losses = [json.loads(said.out)["losses"] for said in (one, two, three)]
    assert losses[1][0] < losses[0][0] - 0.1
    assert losses[2][0] == pytest.approx(losses[1][0], rel=1e-6)
    assert json.loads(three.out)["exported_weights"] is None

    again = run("tiny-30k", "--export-weights", first)
    assert again.status == 2
    assert_names(again.sentence, first)
    wider = run("tiny-1m", "--from-weights", file)
    assert wider.status == 2
    assert_names(wider.sentence, f"{second}/config.json", "layers=2", "tiny-1m", "layers=4")


@pytest.mark.parametrize(
    ("model", "words", "named"),
    [
        ("mpt-7b", ("--export-weights", "new"), "mpt-7b alibi"),
        ("kimi-k2", ("--export-weights", "new"), "kimi-k2 norm_eps=1e-05"),
        ("grok-1", ("--export-weights", "new"), "grok-1 router=softmax Mixtral"),
        (
            "qwen3-30b-a3b",
            ("--model-set", "router=sigmoid", "--export-weights", "new"),
            "qwen3-30b-a3b router=sigmoid Qwen3-MoE",
        ),
        ("tiny-30k", ("--from-weights", "nowhere"), "nowhere"),
        ("tiny-30k", ("--export-weights", "file/new"), "file/new"),
        (
            "tiny-30k",
            ("--from-weights", "."),
            "model.safetensors model.safetensors.index.json",
        ),
        ("tiny-30k", ("--from-weights", "file"), "file"),
    ],
)
def test_weights_that_cannot_be_are_refused_before_a_rank_starts(
    model: str,
    words: tuple[str, ...],
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_bytes(b"")
    said = run(model, *words)
    assert said.status == 2
    assert_names(said.sentence, *named.split())
    assert not Path("new").exists()


def test_experts_that_are_not_read_are_refused_by_their_family(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "qwen3_next", "num_experts": 8}))
    for model in (str(config), "mistral-7b"):
        said = run(model, "--from-weights", str(tmp_path))
        assert said.status == 2
        assert_names(said.sentence, "qwen3_next", "gated DeltaNet")
        (tmp_path / "model.safetensors").write_bytes(b"")
    config.write_text(json.dumps({"model_type": "mixtral", "rope_theta": 10_000}))
    said = run("mistral-7b", "--from-weights", str(tmp_path))
    assert_names(said.sentence, "config.json", "experts=8", "mistral-7b", "experts=0")


def published_qwen(folder: Path) -> tuple[GPT, dict[str, torch.Tensor]]:
    """Weights of a Qwen3 with their config, in a new folder."""
    gpt = find_model("tiny-llama-40k").changed(qk_norm=True, norm_eps=1e-6)
    weights = hugging_face.as_llama(start(gpt), gpt.layers, gpt.width, gpt.attention.heads)
    folder.mkdir()
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config_of(gpt, "fp64", None)))
    return gpt, weights


def convert(source: Path, target: Path, *words: str) -> Said:
    given = (f"{source}/config.json", "--from-weights", str(source), "--steps", "0", *words)
    return simgpt("run", *given, "--export-weights", str(target))


def test_no_steps_convert_weights_into_another_precision(tmp_path: Path) -> None:
    source, wide, half = (tmp_path / name for name in ("in", "wide", "half"))
    _, weights = published_qwen(source)
    said = convert(source, wide, "--plan", "precision=fp64", "--json")
    assert said.status == 0, said.err
    record = json.loads(said.out)
    assert (record["files"], record["precision"]) == (["model.safetensors"], "fp64")
    assert record["bytes"] == sum(tensor.nbytes for tensor in weights.values())
    assert convert(wide, half).status == 0
    for folder, dtype in ((wide, torch.float64), (half, torch.bfloat16)):
        found = load_file(folder / "model.safetensors")
        assert found.keys() == weights.keys()
        for name, tensor in weights.items():
            assert torch.equal(found[name], tensor.to(dtype)), name
    config = json.loads((half / "config.json").read_text())
    assert (config["architectures"], config["torch_dtype"]) == (["Qwen3ForCausalLM"], "bfloat16")


def test_a_conversion_is_written_into_files_of_a_bounded_size(tmp_path: Path) -> None:
    gpt, weights = published_qwen(tmp_path / "in")
    (tmp_path / "out").mkdir()
    found = conversion.convert(gpt, tmp_path / "in", tmp_path / "out", "fp64", file_bytes=50_000)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert len(found.files) > 2
    assert set(index["weight_map"].values()) == set(found.files)
    for name, file in index["weight_map"].items():
        assert torch.equal(load_file(tmp_path / "out" / file)[name], weights[name]), name
    assert index["weight_map"].keys() == weights.keys()


@pytest.mark.parametrize("source", ["in", "in/model.safetensors"])
def test_a_conversion_keeps_what_else_the_config_beside_the_weights_says(
    source: str, tmp_path: Path
) -> None:
    gpt, _ = published_qwen(tmp_path / "in")
    config = tmp_path / "in" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"eos_token_id": 7}))
    (tmp_path / "out").mkdir()
    conversion.convert(gpt, tmp_path / source, tmp_path / "out", "fp32")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["eos_token_id"] == 7


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--batch", "4"), ("--batch", "--steps 0")),
        (("--plan", "tp=2"), ("--plan tp", "--steps 0", "precision")),
        (("--model-set", "norm_eps=1e-3"), ("norm_eps=1e-06", "norm_eps=0.001")),
    ],
)
def test_what_a_conversion_has_no_use_for_is_refused(
    words: tuple[str, ...], named: tuple[str, ...], tmp_path: Path
) -> None:
    published_qwen(tmp_path / "in")
    said = convert(tmp_path / "in", tmp_path / "out", *words)
    assert said.status == 2
    assert_names(said.sentence, *named)
    assert not (tmp_path / "out").exists()


def test_no_steps_without_weights_are_refused() -> None:
    said = simgpt("run", "tiny-30k", "--steps", "0")
    assert said.status == 2
    assert_names(said.sentence, "--steps 0", "--from-weights", "--export-weights")
