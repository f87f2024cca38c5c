"""Numbers beyond anything that is built, trained or measured: refused before work is spent."""

from __future__ import annotations

import resource
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from simulator.explain.sensitivity import MachineParameter
from tests.messages import assert_names
from tests.simgpt.face import simgpt

PREDICT = "predict tiny-30k -m frontier"
BENCH = "bench-network -m frontier"
STUDY = 'model = "tiny-30k"\nmachine = "frontier"\n'
DIGITS = "9" * 5000


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (
            f"{PREDICT} -n 4 --batch 9223372036854775808",
            "--batch 9223372036854775808 1,000,000,000",
        ),
        (f"{PREDICT} -n 10000001", "-n 10000001 10,000,000"),
        (f"{PREDICT} -n 4 --batch-tokens {10**16}", "--batch-tokens 1,000,000,000,000,000"),
        (f"{PREDICT} -n 4 --batch-tokens 0.5", "--batch-tokens 0.5 4Mi"),
        (f"{PREDICT} -n 4 --sweep batch_tokens={DIGITS}", "4Mi"),
        (f"{PREDICT} -n {DIGITS}", "-n"),
        (f"{PREDICT} --plan batch={10**10}", "batch=10000000000 1,000,000,000"),
        (f"{PREDICT} --plan mbs={DIGITS}", "mbs"),
        (f"{PREDICT} -n 4 --tokens 1e300", "--tokens 1e300 300e9"),
        (f"{PREDICT} -n 4 --sweep batch={10**10}", "batch 10000000000 1,000,000,000"),
        (f"{PREDICT} -n 4 --sweep devices={10**8}", "devices 100000000 10,000,000"),
        (f"search tiny-30k -m frontier -n 4 --batch 4 --also-devices {10**8}", "--also-devices"),
        (f"{BENCH} --sizes 1:{'9' * 400}", "--sizes GiB"),
        (f"{BENCH} --sizes 1:1e300", "--sizes e300 GiB"),
        (f"{BENCH} --sizes 1e-9B:1B", "--sizes e-9B GiB"),
        (f"{BENCH} --devices {DIGITS}", "--devices 16:1024"),
        (f"{BENCH} --placement random:seed={DIGITS}", "seed=… order=…"),
        (f"{BENCH} --placement scattered:{DIGITS}", "scattered:30"),
        (f"{BENCH} --placement hosts:a[1-99999999999]", "a[1-99999999999] 1,000,000"),
        (f"{BENCH} --placement hosts:a[1-9],b[0-999999999]", "a[1-9],b[0-999999999] 1,000,000"),
        (f"{BENCH} --placement hosts:a[1-{DIGITS}]", "18"),
        (f"{BENCH} --placement hosts:a{'9' * 19}", f"a{'9' * 19} 18"),
        (f"{BENCH} --placement hosts:a{DIGITS}", "frontier[00001-00064,00100]"),
    ],
)
def test_a_number_of_the_command_line(command: str, named: str) -> None:
    said = simgpt(*command.split())
    assert said.status == 2
    assert_names(said.sentence, *named.split())


@pytest.mark.parametrize(
    ("setting", "limit"),
    [
        ("device.launch=1e99999999999999999999 s", "10 us"),
        ("node.links.all_pairs=1001", "1,000"),
        ("node.links.pairs=[[0,1,1001]]", "1,000"),
        ("device.launch=1e31 s", "1e+30 s"),
        ("device.memory_bandwidth=1e-300 GB/s", "1e-30"),
        ("software.compute_share=1" + "0" * 400, "0.1"),
        ("software.compute_share=" + DIGITS, "0.1"),
        ("software.compute_share=NaN", "0.1"),
        ("node.nics.of_device=" + "[" * 5000, "[device, device, count]"),
        ("nodes=100000000", "1,000,000"),
        ("interconnect.groups=1000000", "1,000"),
        ("node.devices=1000000", "576"),
        ("node.nics.count=100000", "1,024"),
    ],
)
def test_a_number_of_a_machine(setting: str, limit: str) -> None:
    """The key is named, and the most that it may be, or how it is written."""
    said = simgpt(*PREDICT.split(), "-n", "4", "--set", setting)
    assert said.status == 2
    assert_names(said.sentence, setting.partition("=")[0], limit)


def test_counts_that_multiply_to_too_much() -> None:
    """Each of them is allowed, 1,000,000 nodes of 63 devices are not."""
    settings = ["nodes=1000000", "interconnect.groups=1000", "interconnect.nodes_per_group=1000"]
    words = [word for setting in settings for word in ("--set", setting)]
    said = simgpt("predict", "tiny-30k", "-m", "frontier", "-n", "8", "--plan", "z=8", *words)
    assert (said.status, said.err) == (0, "")
    devices = "[" + ",".join("0" for _ in range(63)) + "]"
    words += ["--set", "node.devices=63", "--set", f"node.nics.of_device={devices}"]
    said = simgpt(*PREDICT.split(), "-n", "8", *words)
    assert said.status == 2
    assert_names(said.sentence, "63,000,000", "10,000,000")
    words = ["--set", "interconnect.switches_per_group=1000000"]  # in each of 77 groups
    said = simgpt(*PREDICT.split(), "-n", "8", *words)
    assert said.status == 2
    assert_names(said.sentence, "77,000,000", "10,000,000")


def test_a_huge_machine_is_refused_within_little_memory() -> None:
    """100,000,000 nodes took 3.2 GB of arrays; here there is not one GiB more than at rest."""
    limit = 4 * 2**30
    words = "--set nodes=100000000 --set interconnect.groups=1000000 -n 8 --plan z=8"
    done = subprocess.run(
        [sys.executable, "-m", "simgpt", *PREDICT.split(), *words.split()],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("batch = 1e30", "batch 1e+30"),
        ("batch = 10000000000", "batch 10000000000 1,000,000,000"),
        ("devices = 10000000000", "devices 10000000000 10,000,000"),
        ("[set]\noverlap = 0", "overlap=0 oar+ors"),
        ("[set]\noverlap = 2.5", "plan.overlap 2.5"),
        ("[set]\nstage_layers = 5", "stage_layers=5 6+6+5"),
        ("[set]\nz = 10000000000", "z=10000000000 1,000,000,000"),
        ("[sweep]\nz = [" + "1," * 20_000 + "2]", "sweep.z 1"),
    ],
)
def test_a_number_of_a_study(
    text: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("study.toml").write_text(STUDY + text + "\n")
    said = simgpt("sweep", "study.toml")
    assert said.status == 2
    assert_names(said.sentence, *named.split())


def test_a_number_of_a_study_s_model_is_a_row_that_cannot_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("study.toml").write_text(f"{STUDY}[set]\nrope_base = 10000000000000\n")
    said = simgpt("sweep", "study.toml")
    assert said.status == 3
    assert_names(said.out, "rope_base=10000000000000", "1,000,000,000,000")


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("source = 1", "source device.name 1"),
        ("confidence = [1]", "confidence device.name [1]"),
        ("note = {a = 1}", "note device.name"),
        ("[sources]\nx = 3", "sources"),
        ("[variants]\nx = 3", "variants.x software device"),
    ],
)
def test_a_machine_whose_words_are_no_text(line: str, named: str, tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    top = "" if line.startswith("[") else '[device]\nname = "A100"\n'
    path.write_text(f'name = "m"\n{top}{line}\n')
    said = simgpt("machines", str(path))
    assert said.status == 2
    assert_names(said.sentence, "m.toml", *named.split())


def test_variants_and_software_that_are_no_tables(tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    for text, named in {
        "variants = 3": "variants",
        "software = 3\n[variants.a.software]\n": "variants.a",
    }.items():
        path.write_text(text)
        said = simgpt("machines", str(path))
        assert said.status == 2
        assert_names(said.sentence, named)


def test_a_schedule_that_never_repeats_is_not_simulated_beyond_measure() -> None:
    plan = "pp=2,mbs=1,schedule=gpipe"
    said = simgpt(*f"predict tiny-30k -m host -n 2 --plan {plan} --batch 1000000000".split())
    assert said.status == 3
    assert_names(said.sentence, "schedule=gpipe", "1,000,000,000", "1,000,000", "schedule=1f1b")


def test_as_many_links_as_there_may_be_are_made_no_more() -> None:
    most = MachineParameter("node.links.all_pairs", 1000, None, counted=True, most=1000)
    assert most.steps() == (999, 1000)


LOW = ["device.memory_bandwidth=1e-9 B/s"]
HIGH = [
    *("device.peak_flops.bf16=1e29 FLOP/s", "device.memory_bandwidth=1e29 B/s"),
    *("device.launch=0 s", "device.matmul.launch=0 s"),
]


@pytest.mark.parametrize(
    ("command", "settings"),
    [
        *product(("predict", "why", "search"), (LOW, HIGH)),
        ("predict", ["node.links.bandwidth=1e-29 B/s"]),
        ("predict", ["device.peak_flops.bf16=1e-29 FLOP/s"]),
    ],
)
def test_rates_that_no_time_can_be_told_at_are_refused(command: str, settings: list[str]) -> None:
    """A step of more than 63 bits of picoseconds, or of none."""
    ranks = "1" if len(settings) > 1 else "2"
    words = [command, "tiny-30k", "-m", "perlmutter", "-n", ranks, "--batch", "2"]
    words += [] if command == "search" else ["--plan", "dp=rest"]
    words += [word for setting in settings for word in ("--set", setting)]
    said = simgpt(*words)
    assert said.status in (2, 3)
    assert said.err.splitlines()[-1].startswith("simgpt: ")
