"""Cost: nodes, node time and energy, worked out by hand from the machines' own facts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.economics import Cost, cost_of
from simulator.predict import predict
from topologies.machine import Machine
from topologies.machine_files import load_machine, with_settings
from workload.gpt import find_model
from workload.plan_text import parse_plan

# Round numbers: 2 nodes of 4 devices, 8 switches for 4 nodes of the machine.
SETTINGS = {
    "nodes": 4,
    "interconnect.groups": 2,
    "interconnect.nodes_per_group": 2,
    "interconnect.last_group_nodes": 0,
    "interconnect.switches_per_group": 4,
    "device.power.idle": "50 W",
    "device.power.max": "250 W",
    "device.power.waiting": 0.2,  # 50 W, as idle
    "power.node_idle": "500 W",
    "power.node_max": "1500 W",
    "power.switch": "100 W",
}


def machine(**settings: object) -> Machine:
    changes = {key.replace("__", "."): value for key, value in settings.items()}
    return with_settings("perlmutter", {**SETTINGS, **changes})


def test_half_busy_devices_draw_half_of_what_lies_between_idle_and_most() -> None:
    cost = cost_of(machine(), 8, step_s=2.0, busy_s=1.0)
    nodes, devices, switches = 2 * 500, 8 * 0.5 * 200, 2 * 8 / 4 * 100
    assert cost.power_w == nodes + devices + switches
    assert cost.energy_j_per_step == 2.0 * (nodes + devices + switches)
    assert (cost.nodes, cost.node_s_per_step, cost.busy) == (2, 4.0, 0.5)


def test_devices_that_wait_in_collectives_draw_their_share_of_the_most() -> None:
    # Half of the time at 250 W and half at 0.5 * 250; in nodes that would draw 50 W a device idle.
    cost = cost_of(machine(device__power__waiting=0.5), 8, step_s=2.0, busy_s=1.0)
    each = (250 + 125) / 2
    assert cost.devices_energy_j_per_step == 2.0 * 8 * each
    assert cost.power_w == 2 * 500 + 8 * (each - 50) + 400
    never_less_than_idle = machine(device__power__waiting=0.1).device.power
    assert never_less_than_idle is not None
    assert never_less_than_idle.waiting_w == 50


def test_a_step_of_the_same_length_draws_less_the_more_of_it_waits() -> None:
    powers = [
        cost_of(load_machine(name), 8, step_s=1.0, busy_s=busy_s).power_w or 0.0
        for name in ("dgx-h100", "perlmutter", "frontier")
        for busy_s in (0.2, 0.8)
    ]
    assert all(less < more for less, more in zip(powers[::2], powers[1::2], strict=True))


def test_devices_of_a_node_that_the_job_leaves_idle_are_charged_and_draw_idle_power() -> None:
    cost = cost_of(machine(), 5, step_s=1.0, busy_s=1.0)
    assert (cost.nodes, cost.node_s_per_step) == (2, 2.0)
    assert cost.power_w == 2 * 500 + 5 * 200 + 400


def test_a_node_never_draws_more_than_its_most() -> None:
    cost = cost_of(machine(power__node_max="900 W"), 8, step_s=1.0, busy_s=1.0)
    assert cost.power_w == 2 * 900 + 400


def test_switches_of_a_fat_tree_are_its_leaves_and_spines() -> None:
    tree = load_machine("dgx-h100").interconnect
    assert tree.switches == tree.leaves + tree.spines  # type: ignore[union-attr]


def test_a_single_node_has_no_switch_to_pay_for() -> None:
    host = load_machine("host")
    assert cost_of(host, 2, step_s=1.0, busy_s=1.0).power_w == 10 + 2 * 9


def test_of_the_devices_alone_half_busy_ones_draw_the_mean_of_idle_and_most() -> None:
    """8 devices for 2 s at (50 + 250) / 2 W; two idle ones of the second node are none of the
    plan's."""
    for known in (machine(), replace(machine(), power=None)):
        cost = cost_of(known, 8, step_s=2.0, busy_s=1.0)
        assert cost.devices_energy_j_per_step == 2.0 * 8 * 150
        assert cost.as_dict()["devices_energy_j_per_step"] == 2400.0
        assert cost.training(100.0, 10).as_dict()["devices_energy_j"] == 24_000.0
        assert cost_of(known, 6, step_s=1.0, busy_s=1.0).devices_energy_j_per_step == 6 * 250
    silent = replace(machine(), device=replace(machine().device, power=None))
    cost = cost_of(silent, 8, step_s=2.0, busy_s=1.0)
    assert cost.devices_energy_j_per_step is None
    records = (cost.as_dict(), cost.training(100.0, 10).as_dict())
    assert not any("devices" in key for record in records for key in record)


@pytest.mark.parametrize("part", ["device", "node"])
def test_without_facts_on_power_there_is_no_energy(part: str) -> None:
    known = machine()
    silent = (
        replace(known, power=None)
        if part == "node"
        else replace(known, device=replace(known.device, power=None))
    )
    cost = cost_of(silent, 8, step_s=2.0, busy_s=1.0)
    assert (cost.energy_j_per_step, cost.power_w) == (None, None)
    assert cost.training(100.0, 10).energy_j is None
    assert cost.node_s_per_step == 4.0


def test_training_takes_whole_steps() -> None:
    run = Cost(nodes=2, step_s=3.0, busy=1.0, energy_j_per_step=5.0).training(101.0, 10)
    assert (run.steps, run.time_s, run.node_s, run.energy_j) == (11, 33.0, 66.0, 55.0)


def test_a_prediction_is_busy_while_it_computes() -> None:
    plan = parse_plan("tp=2,dp=4", batch=8)
    prediction = predict(find_model("tiny-1m"), plan, load_machine("frontier"))
    parts, cost = prediction.breakdown_s, prediction.cost
    assert cost.busy == pytest.approx((parts["compute"] + parts["optimizer"]) / prediction.step_s)
    assert cost.node_s_per_step == prediction.step_s
    assert prediction.as_dict()["cost"]["energy_j_per_step"] == cost.energy_j_per_step
