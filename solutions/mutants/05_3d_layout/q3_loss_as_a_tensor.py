"""The loss must be a number, not a Tensor

The loss is a tensor with one number.
"""

def make_groups(tensor, data, pipeline):
    """{"tensor", "data", "pipeline", "embedding": this rank's group}; tensor innermost, pipeline outermost."""
    place = torch.arange(tensor * data * pipeline).reshape(pipeline, data, tensor)
    lists = {
        "tensor": place.flatten(0, 1),
        "data": place.transpose(1, 2).flatten(0, 1),
        "pipeline": place.flatten(1).T,
        "embedding": place[[0, -1]].flatten(1).T,
    }
    mine = dict.fromkeys(lists)
    for name, members in lists.items():
        for ranks in members.tolist():
            group = dist.new_group(ranks)
            if dist.get_rank() in ranks:
                mine[name] = group
    return mine


def train_step(stage, run_pipeline, groups, tokens, targets, micro_batch):
    """Leave the gradients of the whole batch in `grad`; return its mean loss on every rank."""
    d, replica = dist.get_world_size(groups["data"]), dist.get_rank(groups["data"])
    inputs, wanted = (part.chunk(d)[replica].split(micro_batch) for part in (tokens, targets))
    known = run_pipeline(stage, inputs, wanted, groups["pipeline"])

    if stage.table is not None:
        dist.all_reduce(stage.table.grad, group=groups["embedding"])
    for parameter in stage.parameters():
        if parameter.requires_grad:
            dist.all_reduce(parameter.grad, group=groups["data"])
            parameter.grad /= d

    loss = torch.tensor(known or 0.0, dtype=torch.float64)
    for name in ("pipeline", "data"):
        dist.all_reduce(loss, group=groups[name])
    return loss / d
