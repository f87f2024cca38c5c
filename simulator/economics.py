"""What a step costs beside its time: nodes that are charged, and the energy they draw."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from topologies.machine import Machine
from topologies.records import record

NO_POWER = "not known: the machine's file says nothing of power"


@record
class Training:
    """What it takes to train on `tokens` tokens, in `steps` whole steps without a break.

    Energies are None where no file says the power; `devices_energy_j` is of the devices alone.
    Not modelled: checkpoints, failures, restarts, queues and evaluation.
    """

    tokens: float
    steps: int
    time_s: float
    node_s: float
    energy_j: float | None
    devices_energy_j: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """The run's cost as it stands in JSON; the devices' energy only where it is known."""
        return {
            "tokens": self.tokens,
            "steps": self.steps,
            "time_s": self.time_s,
            "node_s": self.node_s,
            "energy_j": self.energy_j,
            **_known("devices_energy_j", self.devices_energy_j),
        }


@record
class Cost:
    """One step's cost: whole `nodes` are charged for `step_s`; without facts on power, no energy.

    `busy` is the share of the step in which a device computes. `devices_energy_j_per_step` is what
    the plan's devices draw of the energy, which is known where only the nodes' power is not.
    """

    nodes: int
    step_s: float
    busy: float
    energy_j_per_step: float | None
    devices_energy_j_per_step: float | None = None

    @property
    def node_s_per_step(self) -> float:
        """Seconds of all nodes together."""
        return self.nodes * self.step_s

    @property
    def power_w(self) -> float | None:
        """What the job draws on average."""
        return None if self.energy_j_per_step is None else self.energy_j_per_step / self.step_s

    def scaled(self, factor: float) -> Cost:
        """The cost of a step that takes so many times as long, at the same power."""
        energy, of_devices = self.energy_j_per_step, self.devices_energy_j_per_step
        return replace(
            self,
            step_s=self.step_s * factor,
            energy_j_per_step=None if energy is None else energy * factor,
            devices_energy_j_per_step=None if of_devices is None else of_devices * factor,
        )

    def training(self, tokens: float, tokens_per_step: int) -> Training:
        """The cost of training on that many tokens."""
        steps = math.ceil(tokens / tokens_per_step)
        energy, of_devices = self.energy_j_per_step, self.devices_energy_j_per_step
        return Training(
            tokens=tokens,
            steps=steps,
            time_s=steps * self.step_s,
            node_s=steps * self.node_s_per_step,
            energy_j=None if energy is None else steps * energy,
            devices_energy_j=None if of_devices is None else steps * of_devices,
        )

    def as_dict(self) -> dict[str, Any]:
        """The cost as it stands in JSON; the devices' energy only where it is known."""
        return {
            "nodes": self.nodes,
            "node_s_per_step": self.node_s_per_step,
            "energy_j_per_step": self.energy_j_per_step,
            **_known("devices_energy_j_per_step", self.devices_energy_j_per_step),
            "power_w": self.power_w,
            "busy": self.busy,
        }


def cost_of(machine: Machine, devices: int, *, step_s: float, busy_s: float) -> Cost:
    """The cost of a step of `step_s` on `devices` that compute for `busy_s` of it.

    Energy is step_s times what the job's nodes and its share of the switches draw; that of the
    devices alone, times what they draw, with no heed to the most that a node draws.
    """
    nodes = machine.segments(devices).nodes
    busy = busy_s / step_s
    drawn = power_w(machine, nodes, devices, devices * busy)
    of_devices = devices_power_w(machine, devices, devices * busy)
    return Cost(
        nodes=nodes,
        step_s=step_s,
        busy=busy,
        energy_j_per_step=None if drawn is None else step_s * drawn,
        devices_energy_j_per_step=None if of_devices is None else step_s * of_devices,
    )


def _known(key: str, value: float | None) -> dict[str, float]:
    return {} if value is None else {key: value}


def power_w(machine: Machine, nodes: int, devices: int, busy_devices: float) -> float | None:
    """What `nodes` draw with a job on `devices`, of which `busy_devices` compute and the rest waits
    in collectives, and switches; None where no file says it.

    P = min(n node_idle + w (wait - idle) + d (max - wait), n node_max) + n switches/machine nodes *
    switch, with n nodes, w devices and d busy ones; node_idle includes its idle devices.

    Source: the component model of ExaDigiT/RAPS (github.com/ExaDigiT/RAPS, power.py), linear in the
    use of each device; switches are shared evenly by all nodes. Not modelled: what CPUs, memory and
    NICs draw above idle, how power differs among ops and among waits (a pipeline's bubble counts as
    a collective), losses of power supplies, cooling, file systems.
    """
    node = machine.power
    of_devices = devices_power_w(machine, devices, busy_devices)
    if machine.device.power is None or node is None or of_devices is None:
        return None
    above_idle = of_devices - devices * machine.device.power.idle_w
    drawn = min(nodes * node.node_idle_w + above_idle, nodes * node.node_max_w)
    switches = nodes * machine.interconnect.switches / machine.nodes
    return drawn + switches * node.switch_w


def devices_power_w(machine: Machine, devices: int, busy_devices: float) -> float | None:
    """What `devices` draw of which `busy_devices` compute, in watts; None where no file says it.

    P = n wait + d (max - wait), with n devices and d busy ones: the devices' part of `power_w`.
    """
    each = machine.device.power
    if each is None:
        return None
    return devices * each.waiting_w + busy_devices * (each.max_w - each.waiting_w)
