"""What the kernels of a Mamba-2 layer between its linears reach on a device."""

from __future__ import annotations

from typing import Annotated

from topologies.files.keys import Key
from topologies.records import record


@record(slots=False)
class Scan:
    """Rates of mamba-ssm's and causal-conv1d's kernels, which no other kernel shares.

    `products` is how fast those of a scan multiply in bf16; none of their tiles is long enough for
    that to hide what they load and store. `convolution` and `convolution_grad` are the shares of
    the memory's bandwidth that both kernels of a convolution reach. A norm's gradients are found by
    as many programs as fill `units` multiprocessors with four warps each; they go through their
    rows one by one, `norm_row` for each row of a group.
    """

    products_flops_per_s: Annotated[float, Key("products", "FLOP/s")]
    convolution: Annotated[float, Key("convolution", share=True)]
    convolution_grad: Annotated[float, Key("convolution_grad", share=True)]
    units: Annotated[int, Key("units")]
    norm_row_s: Annotated[float, Key("norm_row", "s")]
