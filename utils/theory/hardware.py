"""Chips, links and clusters, with the source of each figure."""

from dataclasses import dataclass, field

from . import collectives
from .arguments import device_bytes, one_of, positive, whole_number
from .link import Link
from .units import GB, GiB


@dataclass(frozen=True)
class Chip:
    """An accelerator.

    peak_flops_per_second: dense peak by dtype, without sparsity.
    memory_bytes, memory_bytes_per_second: size and bandwidth of its own memory.
    """

    name: str
    memory_bytes: float
    memory_bytes_per_second: float
    peak_flops_per_second: dict = field(hash=False)

    def __post_init__(self):
        device_bytes("memory_bytes", self.memory_bytes)
        positive("memory_bytes_per_second", self.memory_bytes_per_second)
        for dtype, peak in self.peak_flops_per_second.items():
            positive(f"peak_flops_per_second[{dtype!r}]", peak)

    def peak(self, dtype="bf16"):
        """Peak in operations per second for `dtype`; bf16 falls back to fp16 on chips that lack it."""
        peaks = self.peak_flops_per_second
        if dtype == "bf16" and dtype not in peaks:
            dtype = "fp16"
        return peaks[one_of("dtype", dtype, tuple(peaks))]


TERA = 10**12

CHIPS = {
    chip.name: chip
    for chip in (
        Chip("V100-32GB", 32 * GiB, 900 * GB, {"fp32": 15.7 * TERA, "fp16": 125 * TERA}),
        Chip("V100-DGX-2H", 32 * GiB, 900 * GB, {"fp32": 16.4 * TERA, "fp16": 130 * TERA}),
        Chip("T4", 16 * GiB, 320 * GB, {"fp32": 8.1 * TERA, "fp16": 65 * TERA}),
        Chip("A100-40GB", 40 * GiB, 1555 * GB, {"fp32": 19.5 * TERA, "fp16": 312 * TERA, "bf16": 312 * TERA}),
        Chip("A100-80GB", 80 * GiB, 2039 * GB, {"fp32": 19.5 * TERA, "fp16": 312 * TERA, "bf16": 312 * TERA}),
        Chip(
            "H100-80GB",
            80 * GiB,
            3350 * GB,
            {"fp32": 67 * TERA, "fp16": 989 * TERA, "bf16": 989 * TERA, "fp8": 1979 * TERA},
        ),
        Chip(
            "H200-141GB",
            141 * GB,
            4800 * GB,
            {"fp32": 67 * TERA, "fp16": 989 * TERA, "bf16": 989 * TERA, "fp8": 1979 * TERA},
        ),
        Chip("TPUv3", 16 * GiB, 900 * GB, {"bf16": 123 * TERA}),
        Chip("TPUv4", 32 * GiB, 1228 * GB, {"bf16": 275 * TERA}),
        Chip("TPUv5e", 16 * GiB, 819 * GB, {"bf16": 197 * TERA}),
    )
}
"""Chips by name; dense peaks and memory from the makers' data sheets. What is sold as 80 GB is 80 GiB."""

MICROSECOND = 1e-6

LINKS = {
    "nvlink1": Link(1 * MICROSECOND, 80 * GB),
    "nvlink2": Link(1 * MICROSECOND, 150 * GB),
    "nvlink3": Link(1 * MICROSECOND, 300 * GB),
    "nvlink4": Link(1 * MICROSECOND, 450 * GB),
    "nvlink5": Link(1 * MICROSECOND, 900 * GB),
    "pcie3 x16": Link(2 * MICROSECOND, 15.75 * GB),
    "pcie4 x16": Link(2 * MICROSECOND, 31 * GB),
    "pcie5 x16": Link(2 * MICROSECOND, 63 * GB),
    "pcie6 x16": Link(2 * MICROSECOND, 121 * GB),
    "infiniband edr": Link(5 * MICROSECOND, 12.5 * GB),
    "infiniband hdr": Link(5 * MICROSECOND, 25 * GB),
    "infiniband ndr": Link(5 * MICROSECOND, 50 * GB),
    "infiniband xdr": Link(5 * MICROSECOND, 100 * GB),
    "ethernet 10": Link(30 * MICROSECOND, 1.25 * GB),
    "ethernet 25": Link(30 * MICROSECOND, 3.125 * GB),
    "ethernet 100": Link(30 * MICROSECOND, 12.5 * GB),
    "ethernet 400": Link(30 * MICROSECOND, 50 * GB),
}
"""Links by name, in one direction; per GPU for NVLink, per adapter for the others.

Bandwidths as collected in stas00/ml-engineering, chapter on networks; PCIe 3 by its standard. Latencies are orders of magnitude
for one message of a GPU program (NCCL's own tuner has 0.6 to 14 µs per hop, by link and protocol).
"""


@dataclass(frozen=True)
class Cluster:
    """`nodes` servers of `gpus_per_node` chips.

    intra: the Link of one chip inside its server. inter: the Link of one network adapter.
    adapters_per_node: adapters of a server that carry training traffic. Default: one per chip.
    """

    nodes: int
    gpus_per_node: int
    chip: Chip
    intra: Link
    inter: Link
    adapters_per_node: int | None = None

    def __post_init__(self):
        whole_number("nodes", self.nodes)
        whole_number("gpus_per_node", self.gpus_per_node)
        if self.adapters_per_node is None:
            object.__setattr__(self, "adapters_per_node", self.gpus_per_node)
        whole_number("adapters_per_node", self.adapters_per_node)

    @property
    def gpus(self):
        """All chips of the cluster."""
        return self.nodes * self.gpus_per_node

    def ring_link(self, ranks, ranks_per_node):
        """The Link that bounds a ring over `ranks` ranks, `ranks_per_node` of them in each server.

        Inside one server it is `intra`. Otherwise the ring crosses between servers on as many adapters as it
        has ranks in each (NCCL opens that many rings), and the slower of the two bounds it.
        """
        if ranks <= ranks_per_node:
            return self.intra
        share = self.adapters_per_node / self.gpus_per_node
        between = self.inter.bandwidth_bytes_per_second * max(1, ranks_per_node) * share
        inside = self.intra.bandwidth_bytes_per_second if ranks_per_node > 1 else between
        return Link(self.inter.alpha_seconds, min(between, inside))

    def seconds(self, op, ranks, n_bytes):
        """Seconds of one communication call, by the α–β model, over the slowest link that its group crosses.

        op: "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter",
            "send", "recv" or "barrier".
        ranks: the group's members, or the two ends of a message; ranks fill the servers one after another.
        n_bytes: size of the full tensor: the output of an all-gather, the input of a reduce-scatter.

        Rings, as NCCL's, for what all ranks share, a binomial tree for broadcast, reduce and barrier.
        """
        n = len(ranks)
        if n == 1:
            return 0.0
        servers = [whole_number("rank", rank, minimum=0, maximum=self.gpus - 1) // self.gpus_per_node for rank in ranks]
        link = self.ring_link(n, max(servers.count(server) for server in servers))
        return {
            "all_reduce": lambda: collectives.all_reduce_seconds("ring", n_bytes, n, link),
            "all_gather": lambda: collectives.all_gather_seconds("ring", n_bytes, n, link),
            "reduce_scatter": lambda: collectives.reduce_scatter_seconds("ring", n_bytes, n, link),
            "all_to_all": lambda: collectives.all_to_all_seconds(n_bytes, n, link),
            "gather": lambda: collectives.all_to_all_seconds(n_bytes, n, link),
            "scatter": lambda: collectives.all_to_all_seconds(n_bytes, n, link),
            "broadcast": lambda: collectives.broadcast_seconds(n_bytes, n, link),
            "reduce": lambda: collectives.broadcast_seconds(n_bytes, n, link),
            "barrier": lambda: collectives.broadcast_seconds(0, n, link),
            "send": lambda: collectives.point_to_point_seconds(n_bytes, link),
            "recv": lambda: collectives.point_to_point_seconds(n_bytes, link),
        }[op]()


def selene(gpus):
    """The A100s of Narayanan et al. 2021 and Korthikanti et al. 2022: 8 GPUs and 8 HDR adapters a node."""
    return _nodes_of_8(gpus, "A100-80GB", "nvlink3", "infiniband hdr")


def eos(gpus):
    """An H100 cluster: 8 GPUs and 8 NDR adapters a node."""
    return _nodes_of_8(gpus, "H100-80GB", "nvlink4", "infiniband ndr")


def _nodes_of_8(gpus, chip, intra, inter):
    nodes = -(-whole_number("gpus", gpus) // 8)
    return Cluster(nodes, min(gpus, 8), CHIPS[chip], LINKS[intra], LINKS[inter])
