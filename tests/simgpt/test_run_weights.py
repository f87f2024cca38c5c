"""`simgpt run --from-weights --export-weights`: from folder to folder, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from executor.published import conversion
from executor.published.config import config_of
from tests.executor import hugging_face
from tests.executor.test_parity import start
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
    assert f"wrote the weights into {first}" in one.err
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
    assert again.sentence.endswith(f"{first}: it is not empty; name a new folder")
    wider = run("tiny-1m", "--from-weights", file)
    assert wider.status == 2
    assert f"{second}/config.json has layers=2, but tiny-1m has layers=4" in wider.sentence


@pytest.mark.parametrize(
    ("model", "words", "sentence"),
    [
        ("mpt-7b", ("--export-weights", "new"), "weights are read and written of GPT-2's, Llama's"),
        ("nemotron-4-15b", ("--export-weights", "new"), "weights are read and written of GPT-2's"),
        ("kimi-k2", ("--export-weights", "new"), "norm_eps=1e-05 has no place in those"),
        (
            "grok-1",
            ("--export-weights", "new"),
            "router=softmax has no place in those of Mixtral",
        ),
        (
            "qwen3-30b-a3b",
            ("--model-set", "router=sigmoid", "--export-weights", "new"),
            "router=sigmoid has no place in those of Qwen3-MoE",
        ),
        (
            "tiny-30k",
            ("--from-weights", "nowhere"),
            "cannot read the weights nowhere: No such file",
        ),
        ("tiny-30k", ("--export-weights", "file/new"), "cannot write file/new: Not a directory"),
        ("tiny-30k", ("--from-weights", "."), "holds neither model.safetensors nor"),
        ("tiny-30k", ("--from-weights", "file"), "file is no file of safetensors"),
    ],
)
def test_weights_that_cannot_be_are_refused_before_a_rank_starts(
    model: str,
    words: tuple[str, ...],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_bytes(b"")
    said = run(model, *words)
    assert said.status == 2
    assert sentence in said.sentence
    assert not Path("new").exists()


def test_experts_that_are_not_read_are_refused_by_their_family(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "qwen3_next", "num_experts": 8}))
    for model in (str(config), "mistral-7b"):
        said = run(model, "--from-weights", str(tmp_path))
        assert "the family qwen3_next is refused: it needs gated DeltaNet" in said.sentence
        (tmp_path / "model.safetensors").write_bytes(b"")
    config.write_text(json.dumps({"model_type": "mixtral", "rope_theta": 10_000}))
    said = run("mistral-7b", "--from-weights", str(tmp_path))
    assert "config.json has experts=8, but mistral-7b has experts=0" in said.sentence


def published_qwen(folder: Path) -> tuple[GPT, dict[str, torch.Tensor]]:
    """Weights of a Qwen3 with their config, in a new folder."""
    gpt = replace(find_model("tiny-llama-40k"), qk_norm=True, norm_eps=1e-6)
    weights = hugging_face.as_llama(start(gpt), gpt.layers, gpt.width, gpt.heads)
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


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--batch", "4"), "--batch has no effect with --steps 0, which trains nothing"),
        (("--plan", "x=2"), "--plan x has no effect with --steps 0, which splits nothing"),
        (("--model-set", "norm_eps=1e-3"), "has norm_eps=1e-06, but in has norm_eps=0.001"),
    ],
)
def test_what_a_conversion_has_no_use_for_is_refused(
    words: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    published_qwen(tmp_path / "in")
    said = convert(tmp_path / "in", tmp_path / "out", *words)
    assert said.status == 2
    assert sentence in said.sentence
    assert not (tmp_path / "out").exists()


def test_no_steps_without_weights_are_refused() -> None:
    said = simgpt("run", "tiny-30k", "--steps", "0")
    assert said.status == 2
    assert "give --from-weights and --export-weights" in said.sentence
