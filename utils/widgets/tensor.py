"""Lesson 03's widgets: cut a pair of matrices by hand, and see what a cut layer costs over a link.

    cut_matrices()          a widget; draw_cut("columns", "rows", tensor=2) is its picture alone
    layer_time()            a widget; draw_layer_time(link="NVLink 3") is its picture alone
"""

from utils.widgets.frame import Frame


def cut_matrices(cut_a: str = "columns", cut_b: str = "rows", tensor: int = 2, activation: str = "relu",
                 example: str = "worked by hand") -> Frame:
    """A widget that cuts Z = act(X·A)·B over t = `tensor` ranks, on numbers small enough to check in the head.

    cut_a, cut_b   "columns" or "rows": how A and how B is cut
    activation     "none", "relu" or "gelu", between the two products
    example        "worked by hand" (X = (1, 2), Z = 7) or "wider" (every matrix has at least 4 rows and columns)

    The button runs the chosen cut on real ranks and shows the result, the recorded calls and the bytes.
    """
    raise NotImplementedError("cut_matrices is being written.")


def draw_cut(cut_a="columns", cut_b="rows", tensor=2, activation="relu", example="worked by hand", runs=(), figure=None):
    """Draw what `cut_matrices` shows; returns the matplotlib Figure."""
    raise NotImplementedError("draw_cut is being written.")


def cut_sentence(cut_a="columns", cut_b="rows", tensor=2, activation="relu", example="worked by hand", runs=()) -> str:
    """Z, the synchronisations that the cut forces and their cost, and what real ranks did."""
    raise NotImplementedError("cut_sentence is being written.")


def layer_time(hidden: int = 3072, micro_batch: int = 8, sequence: int = 1024, tensor: int = 8, chip: str = "V100-DGX-2H",
               link: str = "NVLink 2", between: str = "InfiniBand EDR", gpus_per_server: int = 16,
               recomputation: str = "full") -> Frame:
    """A widget for the seconds of one layer over t, and the efficiency: what of the GPUs is left for computing.

    hidden, sequence  h and s of a GPT layer; micro_batch b sequences
    tensor            the marked t
    chip              a name in utils.theory.hardware.CHIPS
    link, between     the link inside a server and between servers, names in LINKS of utils.widgets.tensor
    gpus_per_server   a t above it crosses between servers
    recomputation     "none", "selective" or "full"

    Beside it: Megatron-LM's weak scaling, printed and predicted (arXiv 1909.08053, figure 5).
    """
    raise NotImplementedError("layer_time is being written.")


def draw_layer_time(hidden=3072, micro_batch=8, sequence=1024, tensor=8, chip="V100-DGX-2H", link="NVLink 2",
                    between="InfiniBand EDR", gpus_per_server=16, recomputation="full", runs=(), figure=None):
    """Draw what `layer_time` shows; returns the matplotlib Figure."""
    raise NotImplementedError("draw_layer_time is being written.")


def layer_time_sentence(hidden=3072, micro_batch=8, sequence=1024, tensor=8, chip="V100-DGX-2H", link="NVLink 2",
                        between="InfiniBand EDR", gpus_per_server=16, recomputation="full", runs=()) -> str:
    """Seconds of the layer at the marked t, the share of sending in it, and the efficiency."""
    raise NotImplementedError("layer_time_sentence is being written.")
