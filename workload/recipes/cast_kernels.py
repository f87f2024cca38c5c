"""How a software stack casts operands to 8 bits on a device."""

from __future__ import annotations

from topologies.records import record


@record
class CastKernels:
    """How a stack casts on a device. `transposes`: matmuls take one layout alone, as Hopper's.
    Casts for experts' linears in kernels of their own move `expert_bytes` for an element (0: they
    run inside the kernel before) and are `expert_kernels` for each expert. With `pads` rows of
    experts are copied to padded places around their linears."""

    transposes: bool = False
    expert_bytes: int = 0
    expert_kernels: int = 0
    pads: bool = False


INSIDE = CastKernels()
