"""1,000,000 parameters, 3,000 bytes per sample, sgd

One byte is always left free.
"""

def data_parallel_bytes(parameters, activation_bytes_per_sample, batch, ranks, optimizer):
    """Bytes on the fullest rank: copies of the parameters and the activations of its samples."""
    copies = {"sgd": 2, "momentum": 3, "adam": 4}[optimizer]
    samples = -(-batch // ranks)
    return copies * 4 * parameters + samples * activation_bytes_per_sample


def server_worker_bytes(parameters, activation_bytes_per_sample, batch, workers):
    """Bytes on the fullest worker of a parameter server."""
    return data_parallel_bytes(parameters, activation_bytes_per_sample, batch, workers, "sgd")


def largest_batch(memory_bytes, parameters, activation_bytes_per_sample, ranks, optimizer):
    """Samples of the largest batch over all ranks that fits; 0 if the copies alone do not."""
    free_bytes = memory_bytes - data_parallel_bytes(parameters, 0, 0, ranks, optimizer)
    return ranks * max(0, (free_bytes - 1) // activation_bytes_per_sample)
