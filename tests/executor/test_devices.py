"""Ranks compute on GPUs if each has its own, else on the CPU, and as they are told if told."""

from __future__ import annotations

import pytest

from executor.errors import LaunchError, OtherDeviceError
from executor.launching import devices
from executor.launching.devices import device_for
from tests.messages import assert_names, names


@pytest.mark.parametrize(
    ("wanted", "ranks", "gpus", "device"),
    [
        ("auto", 2, 2, "cuda"),
        ("auto", 1, 8, "cuda"),
        ("auto", 2, 0, "cpu"),
        ("cuda", 8, 8, "cuda"),
        ("cpu", 1, 8, "cpu"),
    ],
)
def test_a_device_is_chosen_without_a_word(
    wanted: str, ranks: int, gpus: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "accelerators", lambda: gpus)
    assert device_for(wanted, ranks, pytest.fail) == device


def test_more_ranks_than_gpus_compute_on_the_cpu_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(devices, "accelerators", lambda: 1)
    said: list[str] = []
    assert device_for("auto", 2, said.append) == "cpu"
    (line,) = said
    assert_names(line, "CPU", "2 ranks", "GPU", "1")


@pytest.mark.parametrize("gpus", [0, 1])
def test_more_ranks_than_gpus_on_cuda_are_refused(
    gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "accelerators", lambda: gpus)
    with pytest.raises(LaunchError, check=names("--device cuda", "2 rank", f"{gpus}")):
        device_for("cuda", 2, pytest.fail)


@pytest.mark.parametrize(
    ("name", "device", "here", "is_here"),
    [
        ("x86_64", "cpu", "x86_64", True),
        ("processor core", "cpu", "x86_64", True),
        ("mi250x", "cpu", "x86_64", False),
        ("NVIDIA H100-SXM5-80GB", "cuda", "NVIDIA H100 80GB HBM3", True),
        ("NVIDIA GH200 (H100 with 96 GB HBM3)", "cuda", "NVIDIA H100 80GB HBM3", False),
        ("AMD MI250X, one GCD (gfx90a, 110 CUs)", "cuda", "AMD Instinct MI250X", True),
        ("NVIDIA H100 80GB HBM3", "cuda", "NVIDIA H100 80GB HBM3", True),
        ("processor core", "cuda", "NVIDIA H100 80GB HBM3", False),
        ("A100", "cuda", "NVIDIA H100 80GB HBM3", False),
    ],
)
def test_a_machine_of_other_devices_than_those_here_is_refused(
    name: str, device: str, here: str, is_here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "processor_name", lambda: here)
    monkeypatch.setattr(devices, "NAME", f"print({here!r})")
    if is_here:
        devices.check_is_here(name, device, "a machine")
        return
    with pytest.raises(OtherDeviceError) as error:
        devices.check_is_here(name, device, "a machine")
    assert name in str(error.value)
    assert here in str(error.value)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "-9"),
        ("raise RuntimeError('no driver')", "RuntimeError: no driver"),
        ("print('Loading module cuda/12')", "0"),
        ("import time; time.sleep(60)", "1 s"),
    ],
)
def test_a_torch_that_does_not_say_which_gpus_there_are_is_one_sentence(
    script: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _: "2.13.0+cu128")
    monkeypatch.setattr(devices, "ASK", script)
    monkeypatch.setattr(devices, "TIMEOUT_S", 1)
    with pytest.raises(LaunchError, check=names("torch", "GPUs", why)):
        devices.accelerators()
