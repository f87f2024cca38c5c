"""`python -m tools.hub_models litgpt=CLONE aiconfigurator=CLONE mlc-llm=CLONE llm-analysis=CLONE`:
write workload/descriptions/hub.toml, the sizes of repositories of the Hub, from clones of
repositories that have them.

What a clone's last commit has is read by git. Modules in Python are read over their syntax trees:
tables of literals alone, nothing of them is run. A row has the keys that the reader of a
`config.json` reads (workload/descriptions/hugging_face.py), but for lists that change nothing; what
that reader refuses is left out. The first source that has a repository counts.

litgpt does not say which models share the embedding's table with the classifier: those of the
sizes of a preset do as that does, OF_LITGPT_TIED do so, and all others do not, but for families
whose models do.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from workload.descriptions.configs import families
from workload.descriptions.configs.family import family_of, of_language, with_pattern
from workload.descriptions.hugging_face import model_from_config
from workload.errors import ModelError
from workload.gpt import find_model, model_names

TABLE = Path(__file__).parent.parent / "workload" / "descriptions" / "hub.toml"
Document = dict[str, Any]
# Sources: allenai/OLMo, configs/official/OLMo-1B.yaml, weight_tying; Phi-4-mini (2503.01743),
# section 2; mlc-ai/mlc-llm@79d603f, python/mlc_llm/model/model_preset.py, smollm_1_7b, smollm2_*.
OF_LITGPT_TIED = ("OLMo-1B", "Phi-4-mini", "SmolLM2")
NOT_AS_RELEASED = ("Platypus2-70B",)  # without the groups of heads of the Llama 2 that it is
# Names on the Hub of what mlc-llm calls by names of its own.
OF_MLC = {
    "ministral3_3b_2512": "mistralai/Ministral-3-3B-Instruct-2512",
    "gpt_bigcode": "bigcode/gpt_bigcode-santacoder",
    "redpajama_3b_v1": "togethercomputer/RedPajama-INCITE-Base-3B-v1",
    "phi-3_5-vision": "microsoft/Phi-3.5-vision-instruct",
    "qwen2moe": "Qwen/Qwen1.5-MoE-A2.7B",
    "deepseek": "deepseek-ai/deepseek-moe-16b-base",
    "internlm": "internlm/internlm-chat-7b",
    "internlm2": "internlm/internlm2-7b",
    "internlm2_5_7b": "internlm/internlm2_5-7b",
    "orion": "OrionStarAI/Orion-14B-Base",
    "chatglm": "THUDM/chatglm3-6b",
    "stablelm-2-zephyr-1_6b": "stabilityai/stablelm-2-zephyr-1_6b",
    "qwen2_0_5b": "Qwen/Qwen2-0.5B",
    "qwen2_1_5b": "Qwen/Qwen2-1.5B",
    "qwen2_7b": "Qwen/Qwen2-7B",
    "starcoder2": "bigcode/starcoder2-7b",
    "smollm_1_7b": "HuggingFaceTB/SmolLM-1.7B",
    "smollm_360m": "HuggingFaceTB/SmolLM-360M",
    "smollm_135m": "HuggingFaceTB/SmolLM-135M",
    "aya-23": "CohereForAI/aya-23-8B",
    "minicpm_2b": "openbmb/MiniCPM-2B-128k",
    "minicpm_2b_sft_bf16": "openbmb/MiniCPM-2B-sft-bf16",
    "gpt_j": "EleutherAI/gpt-j-6b",
    "olmo2_32b": "allenai/OLMo-2-0325-32B",
    "baichuan": "baichuan-inc/Baichuan2-7B-Base",
}
# llm-analysis' files of these families have the width of the MLP; of others 4 times the hidden one.
OF_LLM_ANALYSIS = {
    "opt": ("num_hidden_layers", "num_attention_heads", "hidden_size", "max_position_embeddings"),
    "bloom": ("n_layer", "n_head", "hidden_size", "seq_length"),
    "gpt_neo": ("num_layers", "num_heads", "hidden_size", "max_position_embeddings"),
    "gptj": ("n_layer", "n_head", "n_embd", "n_positions"),
}


@click.command()
@click.argument("clones", metavar="NAME=CLONE...", nargs=-1, required=True)
def main(clones: tuple[str, ...]) -> None:
    """Write the table from clones of the repositories that it names."""
    lines = ["# Sizes of models by their names on the Hub. Written by tools/hub_models.py.\n"]
    seen: set[str] = set()
    for each in clones:
        name, _, folder = each.partition("=")
        if name not in SOURCES or not Path(folder).is_dir():
            raise click.UsageError(f"no clone: {each}; say {'|'.join(SOURCES)}=FOLDER")
        repository, path, reader = SOURCES[name]
        commit = _git(folder, "rev-parse", "HEAD").strip()
        lines += [f"\n[{name}]\n", f'source = "{repository}@{commit}, {path}"\n']
        lines += [f"\n[{name}.models]\n"]
        for hub, document in reader(folder, path):
            kept = _kept(document)
            if hub.lower() not in seen and kept is not None:
                lines.append(f"{json.dumps(hub)} = {_toml(kept)}\n")
                seen.add(hub.lower())
    TABLE.write_text("".join(lines), encoding="utf-8")
    sys.stdout.write(f"{len(seen)} repositories\n")


def _git(folder: str, *words: str) -> str:
    """What git says of a clone, or of its git directory."""
    where = Path(folder) / ".git" if (Path(folder) / ".git").exists() else Path(folder)
    command = ["git", f"--git-dir={where}", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _kept(document: Document) -> Document | None:
    """The keys that are read of a config; None of one that is refused."""
    tables = families.tables()
    try:
        whole = model_from_config(document, "it", name="it")
        inner, _, _ = of_language(document, "it", tables)
        family, _ = family_of(inner, "it", tables)
    except ModelError:
        return None
    inner = with_pattern(inner)
    row = families.row_for(tables["families"], family, inner)
    read = {"rope_scaling", "layer_types", "mlp_layer_types", "moe_layer_freq", *row["dropouts"]}
    read |= {*row["absent"], *row["biases"], *row["only"], *row["said"], *tables["scaled"]}
    read |= {key for keys in row["keys"].values() for key in keys} | {*row["experts"].values()}
    read |= {*row["activation"].get("key", []), row["window"].get("key", "")}
    read |= {key for case in row["cases"] for key in case["if"]}
    tops = {key.partition(".")[0] for key in read}
    usual = row["absent"]  # which a null is not
    given = {key: value for key, value in inner.items() if key in tops}
    found = {key: value for key, value in given.items() if value is not None or key in usual}
    found = {"model_type": family, **found}
    for key in [key for key, value in found.items() if isinstance(value, list)]:
        less = {own: value for own, value in found.items() if own != key}
        if model_from_config(less, "it", name="it").gpt == whole.gpt:
            found = less
    return {key: families.NULL if value is None else value for key, value in found.items()}


def _litgpt(folder: str, path: str) -> Iterator[tuple[str, Document]]:
    """litgpt's models; a name with {} stands for those of the words that its loop puts there."""
    tree = ast.parse(_git(folder, "show", f"HEAD:{path}"))
    tables: dict[str, list[Document]] = {}
    words: dict[str, list[str]] = {}
    within: dict[str, str] = {}  # lists that another one is extended by before its loop
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found = _literal(node.value)
            if found:
                tables[node.targets[0].id] = found if isinstance(found, list) else [found]
        elif isinstance(node, ast.For):
            own, kinds = _loop(node)
            words[own] = kinds
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            within |= _extended(node.value)
            tables.setdefault("", []).extend(_appended(node.value))
    for name, configs in tables.items():
        for config in (each for each in configs if isinstance(each, dict) and "hf_config" in each):
            org, hub = config["hf_config"]["org"], config["hf_config"]["name"]
            if hub in NOT_AS_RELEASED:
                continue
            for kind in words.get(within.get(name, name), words[""]) if "{}" in hub else [""]:
                yield f"{org}/{hub.format(kind)}", _from_litgpt(config)


def _literal(node: ast.expr) -> Any:
    """The value of a literal of a module; None of what is not one."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict":
        return {each.arg: _literal(each.value) for each in node.keywords}
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(each) for each in node.elts]
    if isinstance(node, ast.BinOp):
        return None
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def _extended(call: ast.Call) -> dict[str, str]:
    """The list that `a.extend(b)` puts b into."""
    method, given = call.func, call.args
    if (
        isinstance(method, ast.Attribute)
        and method.attr == "extend"
        and isinstance(method.value, ast.Name)
        and isinstance(given[0], ast.Name)
    ):
        return {given[0].id: method.value.id}
    return {}


def _appended(call: ast.Call) -> list[Document]:
    """The table of a model that `a.append(dict(…))` adds to a list."""
    is_append = isinstance(call.func, ast.Attribute) and call.func.attr == "append"
    found = _literal(call.args[0]) if is_append else None
    return [found] if isinstance(found, dict) else []


def _loop(node: ast.For) -> tuple[str, list[str]]:
    """The list that a loop goes over, "" of one over words alone, and the words that it puts into
    names: the last of each pair where it has pairs."""
    inner = next((each for each in node.body if isinstance(each, ast.For)), node)
    kinds = _literal(inner.iter) if isinstance(inner.iter, ast.Tuple) else []
    own = node.iter.id if isinstance(node.iter, ast.Name) else ""
    return own, [each[-1] if isinstance(each, list) else each for each in kinds]


def _from_litgpt(config: Document) -> Document:
    """A `config.json` of what litgpt says of a model."""
    usual: Document = {"n_layer": 16, "n_embd": 4096, "n_head": 32, "block_size": 4096}
    whole: Document = {**usual, **config}
    get = whole.get
    own = _family_of_litgpt(config)
    multiple = get("padding_multiple", 512)
    vocab = get("padded_vocab_size") or -(-get("vocab_size", 50254) // multiple) * multiple
    heads: int = get("n_query_groups") or get("n_head", 0)
    window = get("sliding_window_size") if own != "gpt_neox" else None
    found: Document = {
        "model_type": own,
        "num_hidden_layers": get("n_layer"),
        "hidden_size": get("n_embd"),
        "num_attention_heads": get("n_head"),
        "num_key_value_heads": heads,
        "intermediate_size": get("intermediate_size") or 4 * whole["n_embd"],
        "vocab_size": vocab,
        "max_position_embeddings": get("block_size"),
        "rope_theta": get("rope_base", 10000),
    }
    found |= {"head_dim": get("head_size")} if get("head_size") else {}
    found |= {"sliding_window": window} if window or own in ("mistral", "mixtral") else {}
    found |= _experts_of_litgpt(config, own)
    if own == "falcon":
        new = heads > 1
        found |= {"new_decoder_architecture": new, "multi_query": True, "num_kv_heads": heads}
        found |= {"ffn_hidden_size": found.pop("intermediate_size"), "parallel_attn": True}
    if own == "gpt_neox":
        found |= {"use_parallel_residual": get("parallel_residual", True)}
    if scaling := get("rope_adjustments"):
        found |= _scaling_of_litgpt(scaling)
    if own not in ("gemma", "gemma2", "gemma3_text", "falcon"):
        found["tie_word_embeddings"] = _is_tied(found, config["hf_config"]["name"])
    return found


def _family_of_litgpt(config: Document) -> str:
    """The family of a model by what litgpt says of its layers."""
    get, name = config.get, config["hf_config"]["name"]
    mlp = get("mlp_class_name", "GptNeoxMLP")
    if mlp == "GptNeoxMLP":
        return next((each for each in ("falcon", "phi") if name.startswith(each)), "gpt_neox")
    if mlp == "GemmaMLP":
        return "gemma3_text" if get("norm_qk") else "gemma2" if get("post_mlp_norm") else "gemma"
    if mlp == "LLaMAMoE":
        return "qwen3_moe" if get("norm_qk") else "mixtral"
    if get("norm_class_name", "LayerNorm") == "LayerNorm":
        return "olmo" if name.startswith("OLMo") else "stablelm"
    if get("norm_qk"):
        return "olmo2" if get("norm_qk_type") == "olmo2" else "qwen3"
    if name.lower().startswith("phi"):
        return "phi3"
    if get("attn_bias"):
        return "qwen2"
    return "mistral" if "istral" in name or "athstral" in name else "llama"


def _experts_of_litgpt(config: Document, family: str) -> Document:
    if not config.get("n_expert"):
        return {}
    key = "num_experts" if family == "qwen3_moe" else "num_local_experts"
    found = {key: config["n_expert"], "num_experts_per_tok": config["n_expert_per_token"]}
    if family == "qwen3_moe":
        width = config["moe_intermediate_size"]
        found |= {"moe_intermediate_size": width, "norm_topk_prob": True}  # as its LLaMAMoE does
    return found


def _scaling_of_litgpt(scaling: Document) -> Document:
    """litgpt's numbers of Llama 3's or of linear scaling, as a config has them."""
    if "original_max_seq_len" not in scaling:
        return {"rope_scaling": {"rope_type": "linear", **scaling}}
    own = {key: value for key, value in scaling.items() if key != "original_max_seq_len"}
    length = scaling["original_max_seq_len"]
    own |= {"original_max_position_embeddings": length}
    return {"rope_scaling": {"rope_type": "llama3", **own}}


def _is_tied(config: Document, name: str) -> bool:
    """Whether the classifier shares the embedding's table."""
    sizes = [config[key] for key in ("num_hidden_layers", "hidden_size", "vocab_size")]
    for preset in map(find_model, model_names()):
        if preset.activation == "swiglu" and [preset.layers, preset.hidden, preset.vocab] == sizes:
            return preset.tied
    return name.startswith(OF_LITGPT_TIED)


def _configs(folder: str, path: str) -> Iterator[tuple[str, Document]]:
    """The files of a folder, each called by its repository: `org--name_config.json`."""
    for file in _git(folder, "ls-tree", "-r", "--name-only", "HEAD", f"{path}/").splitlines():
        name = file.rpartition("/")[2]
        if name.endswith("_config.json") and not name.endswith("_hf_quant_config.json"):
            hub = name.removesuffix("_config.json").replace("--", "/")
            text = _git(folder, "show", f"HEAD:{file}")
            yield hub, json.loads(text, parse_constant=str)


def _mlc(folder: str, path: str) -> Iterator[tuple[str, Document]]:
    """mlc-llm's configs, by their names on the Hub."""
    tree = ast.parse(_git(folder, "show", f"HEAD:{path}"))
    for node in tree.body:
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if isinstance(value, ast.Dict):
            for name, document in ast.literal_eval(value).items():
                if hub := OF_MLC.get(name):
                    yield hub, document


def _llm_analysis(folder: str, path: str) -> Iterator[tuple[str, Document]]:
    """llm-analysis' files, each called by its repository: `org_name.json`."""
    for file in _git(folder, "ls-tree", "-r", "--name-only", "HEAD", f"{path}/").splitlines():
        own = json.loads(_git(folder, "show", f"HEAD:{file}"))
        keys = OF_LLM_ANALYSIS.get(own.get("model_type"))
        org, _, name = own["name"].partition("_")
        if keys and name and "testing" not in own["name"] and name[:5] != "test-":
            sizes = (own["num_layers"], own["n_head"], own["hidden_dim"], own["max_seq_len"])
            found = dict(zip(keys, sizes, strict=True))
            found |= {"model_type": own["model_type"], "vocab_size": own["vocab_size"]}
            found |= {"ffn_dim": own["ffn_embed_dim"]} if own["model_type"] == "opt" else {}
            found |= {"word_embed_proj_dim": 512} if name == "opt-350m" else {}
            if own["model_type"] == "opt":
                found.setdefault("word_embed_proj_dim", own["hidden_dim"])
            yield f"{org}/{name}", {key: each for key, each in found.items() if each is not None}


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return (
            "{ " + ", ".join(f"{_key(key)} = {_toml(each)}" for key, each in value.items()) + " }"
        )
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def _key(key: str) -> str:
    return key if key.replace("_", "").isalnum() else json.dumps(key)


SOURCES = {
    "aiconfigurator": (
        "ai-dynamo/aiconfigurator",
        "aic-core/src/aiconfigurator_core/model_configs",
        _configs,
    ),
    "litgpt": ("Lightning-AI/litgpt", "litgpt/config.py", _litgpt),
    "mlc-llm": ("mlc-ai/mlc-llm", "python/mlc_llm/model/model_preset.py", _mlc),
    "llm-analysis": ("cli99/llm-analysis", "llm_analysis/model_configs", _llm_analysis),
}

if __name__ == "__main__":
    main()
