"""Values that stand for others in a framework's YAML: variables, references and resolvers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simgpt.frameworks.importing import imported
from simgpt.frameworks.reading import FrameworkError
from simgpt.frameworks.scripts.interpolation import resolved
from tests.examples import one_in

ARGUMENTS = """
MODEL_ARGS:
  --num-layers: 32
  --hidden-size: 4096
  --num-attention-heads: 32
  --seq-length: ${SEQ_LEN}
  --tensor-model-parallel-size: ${TP:-4}
  --vocab-size: 32000
  --micro-batch-size: 1
  --bf16: true
"""
RECIPE = """
trainer: {{devices: 8, num_nodes: 2, precision: bf16}}
model:
  num_layers: 32
  hidden_size: {hidden}
  ffn_hidden_size: {ffn}
  num_attention_heads: 32
  encoder_seq_length: 2048
  micro_batch_size: ${{trainer.num_nodes}}
  vocab_size: 50304
"""


def written(folder: Path, text: str, name: str = "a.yaml") -> Path:
    """A file with a text."""
    path = folder / name
    path.write_text(text)
    return path


def test_variables_of_a_yaml_are_those_that_are_defined(tmp_path: Path) -> None:
    path = written(tmp_path, ARGUMENTS)
    question = imported([path], devices=8, defined={"SEQ_LEN": "4096", "TP": "2"})
    assert question.gpt is not None
    assert (question.gpt.sequence, question.plan["tp"]) == (4096, 2)


def test_variables_of_a_script_reach_the_yaml_after_it(tmp_path: Path) -> None:
    environment = written(tmp_path, "export SEQ_LEN=$((2 * 1024))\n", "env.sh")
    question = imported([environment, written(tmp_path, ARGUMENTS)], devices=8)
    assert question.gpt is not None
    assert (question.gpt.sequence, question.plan["tp"]) == (2048, 4)


def test_a_yamls_own_table_of_variables_counts(tmp_path: Path) -> None:
    path = written(tmp_path, f"ENV_VARS: {{SEQ_LEN: 512}}{ARGUMENTS}")
    gpt = imported([path], devices=8).gpt
    assert gpt is not None
    assert gpt.sequence == 512


@pytest.mark.parametrize(
    ("hidden", "ffn", "read"),
    [
        ("4096", "${multiply:4, ${.hidden_size}}", 16384),
        ("4096", "${multiply:2, ${model.encoder_seq_length}}", 4096),
        ("4096", "${divide_ceil:${.hidden_size}, 3}", 1366),  # 1365.3
        ("4096", "${oc.env:FFN,11008}", 11008),
        ("4096", "${oc.env:NAMED,11008}", 5120),
        ("${.encoder_seq_length}", "${multiply:${.hidden_size},${trainer.num_nodes}}", 4096),
    ],
)
def test_references_and_resolvers_of_a_recipe_are_read(
    hidden: str, ffn: str, read: int, tmp_path: Path
) -> None:
    path = written(tmp_path, RECIPE.format(hidden=hidden, ffn=ffn))
    question = imported([path], defined={"NAMED": "5120"})
    assert question.gpt is not None
    assert question.gpt.ffn == read
    assert question.plan["mbs"] == 2


@pytest.mark.parametrize(
    ("text", "named", "advised"),
    [
        ("${eval:'4*2'}", "eval", False),
        ("${multiply:2,${eval:2}}", "eval", False),
        ("${.nothing}", "nothing", False),
        ("${trainer.nothing}", "trainer.nothing", False),
        ("${.hidden_size}", "hidden_size", False),
        ("${oc.env:HIDDEN}", "HIDDEN", True),
        ("$HIDDEN", "HIDDEN", True),
        ("${HIDDEN}", "HIDDEN", True),
    ],
)
def test_what_has_no_value_is_named_and_advice_can_be_followed(
    text: str, named: str, advised: bool, tmp_path: Path
) -> None:
    path = written(tmp_path, RECIPE.format(hidden=text, ffn="11008"))
    with pytest.raises(FrameworkError, match=named) as raised:
        imported([path])
    assert (f"--define {named}=" in str(raised.value)) == advised
    if advised:
        gpt = imported([path], defined={named: "4096"}).gpt
        assert gpt is not None
        assert gpt.hidden == 4096


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("${oc.decode:${oc.env:NAMED}}", 5120),
        ("${oc.env:NONE,${.hidden_size}}", 4096),
        ("${oc.select:model.nothing,640}", 640),
        ("${oc.select:model.hidden_size}", 4096),
        ("${sum:${.hidden_size}, 1000}", 5096),
        ("${divide_floor:${.hidden_size}, 3}", 1365),
        ("${multiply:${divide_ceil:${model.hidden_size},1000},1000}", 5000),
        ("${trainer.num_nodes}048", 2048),
        ("${sizes[1]}", 512),
        ("${copied.deep.width}", 768),
        ("${.${which}}", 4096),
        ("$NAMED", 5120),
    ],
)
def test_what_omegaconf_reads_is_read(text: str, read: int, tmp_path: Path) -> None:
    extra = "sizes: [256, 512]\nbase: {deep: {width: 768}}\ncopied: ${base}\nwhich: hidden_size\n"
    path = written(tmp_path, RECIPE.format(hidden="4096", ffn=text) + extra)
    gpt = imported([path], defined={"NAMED": "5120"}, model=None).gpt
    assert gpt is not None
    assert gpt.ffn == read


def test_aliases_and_merged_tables_are_read(tmp_path: Path) -> None:
    text = RECIPE.format(hidden="&width 4096", ffn="*width").replace(
        "model:", "model:\n  <<: *base"
    )
    path = written(tmp_path, "base: &base {tensor_model_parallel_size: 2, vocab_size: 1}\n" + text)
    question = imported([path])
    assert question.gpt is not None
    assert (question.gpt.ffn, question.plan["tp"], question.gpt.vocab) == (4096, 2, 50304)


def test_the_environment_of_the_process_is_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FFN", "1")
    path = written(tmp_path, RECIPE.format(hidden="4096", ffn="${oc.env:FFN,11008}"))
    gpt = imported([path]).gpt
    assert gpt is not None
    assert gpt.ffn == 11008


@pytest.mark.parametrize(
    "document",
    one_in(
        3,
        [
            {f"a{n}": f"${{a{n + 1}}}" * 100 for n in range(50)} | {"a50": "tp"},
            {f"a{n}": dict.fromkeys("abcdefgh", f"${{a{n + 1}}}") for n in range(30)}
            | {"a30": "tp"},
            {f"a{n}": "${b}" * 1000 for n in range(1000)},
        ],
    ),
)
def test_references_that_grow_are_refused(document: dict[str, Any]) -> None:
    with pytest.raises(FrameworkError):
        resolved(document, {})


def test_references_in_a_circle_stay_as_they_are() -> None:
    document = {"a": "${b}", "b": "${c.d}", "c": {"d": "${a}", "e": "${c}"}, "f": "${f}"}
    assert resolved(document, {})["f"] == "${f}"
    assert "${" in resolved(document, {})["a"]


def test_arguments_of_megatron_in_yaml_may_be_what_resolvers_return(tmp_path: Path) -> None:
    """As in a recipe of NeMo's; `${SEQ:-8}` is a shell's, and a definition comes before the file's
    own variable."""
    path = tmp_path / "arguments.yaml"
    path.write_text(
        "ENV_VARS: {SEQ: 32}\nMODEL_ARGS:\n  --num-layers: 2\n  --hidden-size: ${multiply:4,16}\n"
        "  --num-attention-heads: 4\n  --seq-length: ${SEQ:-8}\n  --micro-batch-size: 1\n"
        "  --max-position-embeddings: ${.--seq-length}\n  --vocab-size: 512\n"
        "  --tensor-model-parallel-size: ${oc.env:TP,2}\n"
    )
    question = imported([path], defined={"TP": "4"})
    assert question.gpt is not None
    assert (question.gpt.hidden, question.gpt.sequence, question.plan["tp"]) == (64, 32, 4)
    gpt = imported([path], defined={"SEQ": "128"}).gpt
    assert gpt is not None
    assert gpt.sequence == 128
