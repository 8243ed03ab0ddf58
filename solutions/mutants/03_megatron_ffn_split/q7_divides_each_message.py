"""elements_sent(1, 5, 7, 3, 6, False)

Every message is cut into whole parts.
"""

def parallel_layer(x, norm_1, attention, norm_2, mlp):
    """Attention, then MLP, each behind a norm and beside a shortcut."""
    x = x + reduce_from_group(attention(copy_to_group(norm_1(x))))
    return x + reduce_from_group(mlp(copy_to_group(norm_2(x))))


def parallel_layer_side_by_side(x, norm, attention, mlp):
    """Attention and MLP of the same normed x, beside one shortcut."""
    normed = copy_to_group(norm(x))
    return x + reduce_from_group(attention(normed) + mlp(normed))


def elements_sent(batch, sequence, hidden, layers, ranks, recomputed):
    """Elements that one rank sends in one step of tensor parallelism, in ring all-reduces."""
    all_reduces = 6 if recomputed else 4
    return layers * all_reduces * 2 * (ranks - 1) * (batch * sequence * hidden // ranks)
