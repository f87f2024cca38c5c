"""`simgpt run --from-weights --export-weights`: from folder to folder, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.simgpt.face import Said, simgpt


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
        ("mpt-7b", ("--export-weights", "new"), "weights are read and written of GPT-2's and"),
        ("nemotron-4-15b", ("--export-weights", "new"), "weights are read and written of GPT-2's"),
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


def test_a_mixture_of_experts_is_refused_by_its_family(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "mixtral", "num_local_experts": 8}))
    for model in (str(config), "mistral-7b"):
        said = run(model, "--from-weights", str(tmp_path))
        assert "mixtral is refused: mixture-of-experts layers are not modelled" in said.sentence
        (tmp_path / "model.safetensors").write_bytes(b"")
