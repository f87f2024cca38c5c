"""Numbers beyond anything that is built, trained or measured: refused before work is spent."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from simulator.explain.sensitivity import MachineParameter
from tests.simgpt.face import simgpt

PREDICT = "predict tiny-30k -m frontier"
BENCH = "bench-network -m frontier"
STUDY = 'model = "tiny-30k"\nmachine = "frontier"\n'
DIGITS = "9" * 5000


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (f"{PREDICT} -n 4 --batch 9223372036854775808", "is not in the range 1<=x<=1000000000"),
        (f"{PREDICT} -n 10000001", "is not in the range 1<=x<=10000000"),
        (f"{PREDICT} -n 4 --batch-tokens {10**16}", "tokens in a step are more than"),
        (f"{PREDICT} -n 4 --batch-tokens 0.5", "0.5 is no whole number of tokens"),
        (f"{PREDICT} -n 4 --sweep batch_tokens={DIGITS}", "is no whole number of tokens"),
        (f"{PREDICT} -n {DIGITS}", "is not a whole number"),
        (f"{PREDICT} --plan batch={10**10}", "batch=10000000000 must be at most 1,000,000,000"),
        (f"{PREDICT} --plan x={DIGITS}", "must be a whole number"),
        (f"{PREDICT} -n 4 --tokens 1e300", "1e300 is no number of tokens"),
        (f"{PREDICT} -n 4 --sweep batch={10**10}", "batch = 10000000000 must be at most"),
        (f"{PREDICT} -n 4 --sweep devices={10**8}", "devices = 100000000 must be at most"),
        (f"search tiny-30k -m frontier -n 4 --batch {10**18 + 3}", "is not in the range"),
        (f"search tiny-30k -m frontier -n 4 --batch 4 --also-devices {10**8}", "is no list"),
        (f"{BENCH} --sizes 1:{'9' * 400}", "is not a finite quantity"),
        (f"{BENCH} --sizes 1:1e300", "is not"),
        (f"{BENCH} --sizes 1e-9B:1B", "is no"),
        (f"{BENCH} --devices {DIGITS}", "is no number of devices"),
        (f"{BENCH} --placement random:seed={DIGITS}", "but takes seed=… and order=…"),
        (f"{BENCH} --placement scattered:{DIGITS}", "is not known"),
        (f"{BENCH} --placement hosts:a[1-99999999999]", "names more than 1,000,000 nodes"),
        (f"{BENCH} --placement hosts:a[1-9],b[0-999999999]", "names more than 1,000,000 nodes"),
        (f"{BENCH} --placement hosts:a[1-{DIGITS}]", "has a number of more than 18 digits"),
        (f"{BENCH} --placement hosts:a{'9' * 19}", "has a number of more than 18 digits"),
        (f"{BENCH} --placement hosts:a{DIGITS}", "is longer than the name of any host"),
    ],
)
def test_a_number_of_the_command_line(command: str, words: str) -> None:
    said = simgpt(*command.split())
    assert (said.status, words in said.sentence) == (2, True), said.sentence


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("device.launch=1e9999999 s", '"1e9999999 s" is not a finite quantity'),
        ("device.launch=1e99999999999999999999 s", "is not a finite quantity"),
        ("node.links.all_pairs=1001", "node.links.all_pairs = 1001 must be at most 1,000"),
        ("node.links.pairs=[[0,1,1001]]", "but a pair has at most 1,000 links"),
        ("device.launch=1e31 s", "must be between 1e-30 and 1e+30 s"),
        ("device.memory_bandwidth=1e-300 GB/s", "must be between 1e-30 and 1e+30 bytes/s"),
        ("software.compute_share=1" + "0" * 400, "does not fit; it wants a number"),
        ("software.compute_share=" + DIGITS, "does not fit; it wants a number"),
        ("software.compute_share=NaN", "does not fit; it wants a number"),
        ("node.nics.of_device=" + "[" * 5000, "does not fit; it wants a list"),
        ("nodes=100000000", "nodes = 100000000 must be at most 1,000,000"),
        ("interconnect.groups=1000000", "groups = 1000000 must be at most 1,000"),
        ("node.devices=1000000", "devices = 1000000 must be at most 576"),
        ("node.nics.count=100000", "count = 100000 must be at most 1,024"),
        ("interconnect.switches_per_group=1000000", "switches are more than the 10,000,000"),
    ],
)
def test_a_number_of_a_machine(setting: str, words: str) -> None:
    said = simgpt(*PREDICT.split(), "-n", "4", "--set", setting)
    assert (said.status, words in said.sentence) == (2, True), said.sentence


def test_counts_that_multiply_to_too_much() -> None:
    """Each of them is allowed, 1,000,000 nodes of 63 devices are not."""
    settings = ["nodes=1000000", "interconnect.groups=1000", "interconnect.nodes_per_group=1000"]
    words = [word for setting in settings for word in ("--set", setting)]
    said = simgpt("predict", "tiny-30k", "-m", "frontier", "-n", "8", "--plan", "z=8", *words)
    assert (said.status, said.err) == (0, "")
    devices = "[" + ",".join("0" for _ in range(63)) + "]"
    words += ["--set", "node.devices=63", "--set", f"node.nics.of_device={devices}"]
    said = simgpt(*PREDICT.split(), "-n", "8", *words)
    assert (said.status, "63,000,000 devices are more than" in said.sentence) == (2, True)


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
    ("text", "words"),
    [
        ("batch = 1e30", "batch = 1e+30 must be a whole number"),
        ("batch = 10000000000", "batch = 10000000000 must be at most 1,000,000,000"),
        ("devices = 10000000000", "devices = 10000000000 must be at most 10,000,000"),
        ("[set]\noverlap = 0", "overlap=0 must be text or a list, as in oar+ors"),
        ("[set]\noverlap = 2.5", "plan.overlap = 2.5 is no plan's value"),
        ("[set]\nstage_layers = 5", "stage_layers=5 must be text or a list, as in 6+6+5"),
        ("[set]\nz = 10000000000", "z=10000000000 must be at most 1,000,000,000"),
        ("[set]\nrope_base = 10000000000000", ""),
        ("[sweep]\nz = [" + "1," * 20_000 + "2]", "z has 1 twice"),
    ],
)
def test_a_number_of_a_study(
    text: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("study.toml").write_text(STUDY + text + "\n")
    said = simgpt("sweep", "study.toml")
    if words:
        assert (said.status, words in said.sentence) == (2, True), said.sentence
    else:  # of a model: a row that cannot run
        assert said.status == 3
        assert "rope_base=10000000000000 must be at most 1,000,000,000,000" in said.out


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("source = 1", "is 1, but wants text"),
        ("confidence = [1]", "is [1], but wants text"),
        ("note = {a = 1}", "but wants text"),
        ("[sources]\nx = 3", "sources must be a table of short name = full text"),
        ("[variants]\nx = 3", "variants.x may hold software and device alone"),
    ],
)
def test_a_machine_whose_words_are_no_text(line: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    top = "" if line.startswith("[") else '[device]\nname = "A100"\n'
    path.write_text(f'name = "m"\n{top}{line}\n')
    said = simgpt("machines", str(path))
    assert (said.status, words in said.sentence) == (2, True), said.sentence


def test_variants_and_software_that_are_no_tables(tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    for text, words in {
        "variants = 3": "variants must be tables by name",
        "software = 3\n[variants.a.software]\n": "software must be a table",
    }.items():
        path.write_text(text)
        assert words in simgpt("machines", str(path)).sentence


def test_a_schedule_that_never_repeats_is_not_simulated_beyond_measure() -> None:
    plan = "pipe=2,micro_batch=1,schedule=gpipe"
    said = simgpt(*f"predict tiny-30k -m host -n 2 --plan {plan} --batch 1000000000".split())
    assert said.status == 3
    assert "each of 1,000,000,000 micro-batches on 2 stages would be simulated" in said.sentence


def test_as_many_links_as_there_may_be_are_made_no_more() -> None:
    most = MachineParameter("node.links.all_pairs", 1000, None, counted=True, most=1000)
    assert most.steps() == (999, 1000)


@pytest.mark.parametrize("command", ["predict", "why", "search"])
@pytest.mark.parametrize(
    "settings",
    [
        ["device.memory_bandwidth=1e-9 B/s"],
        ["node.links.bandwidth=1e-29 B/s"],
        ["device.peak_flops.bf16=1e-29 FLOP/s"],
        [
            *("device.peak_flops.bf16=1e29 FLOP/s", "device.memory_bandwidth=1e29 B/s"),
            *("device.launch=0 s", "device.matmul.launch=0 s"),
        ],
    ],
)
def test_rates_that_no_time_can_be_told_at_are_refused(command: str, settings: list[str]) -> None:
    """A step of more than 63 bits of picoseconds, or of none."""
    ranks = "1" if len(settings) > 1 else "2"
    words = [command, "tiny-30k", "-m", "perlmutter", "-n", ranks, "--batch", "2"]
    words += [] if command == "search" else ["--plan", "data=rest"]
    words += [word for setting in settings for word in ("--set", setting)]
    said = simgpt(*words)
    assert said.status in (2, 3)
    assert said.err.splitlines()[-1].startswith("simgpt: ")
