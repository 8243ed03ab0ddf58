"""Sizes in bytes. GB counts in thousands, GiB in 1024s; an 80 GiB device holds 85.9 GB."""

KB, MB, GB, TB = 10**3, 10**6, 10**9, 10**12
KiB, MiB, GiB, TiB = 2**10, 2**20, 2**30, 2**40

SECONDS_PER_DAY = 24 * 60 * 60

BYTES_PER_ELEMENT = {
    "fp64": 8,
    "fp32": 4,
    "tf32": 4,
    "fp16": 2,
    "bf16": 2,
    "fp8": 1,
    "int8": 1,
}
"""Bytes that one element takes in memory, by dtype."""
