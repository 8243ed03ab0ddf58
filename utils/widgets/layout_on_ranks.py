"""What the planner of lesson 05 runs on ranks: one step of a small Llama in a layout, and in one process."""


def train(config, layout, batch: int) -> tuple[float, float]:
    """One training step on this rank of the layout. Returns its loss, and the loss of one process on the same batch."""
    import torch

    from utils.parallel.mesh import Training3D
    from utils.parallel.model import LanguageModel
    torch.set_num_threads(1)  # the model is tiny, and other ranks want the cores too
    words = torch.randint(config.vocab, (batch, config.sequence + 1), generator=torch.Generator().manual_seed(0))
    tokens, targets = words[:, :-1], words[:, 1:]
    with torch.no_grad():
        alone = LanguageModel(config, dtype=torch.float64).loss(tokens, targets).item()
    return Training3D(config, layout, batch, dtype=torch.float64).step(tokens, targets), alone
