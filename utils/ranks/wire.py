"""Bytes that really left a rank over TCP, as the kernel counted them on the rank's own sockets (Linux, no root)."""
import os
import socket
import stat
import struct
import sys

_BYTES_RECEIVED_OFFSET = 128    # struct tcp_info: tcpi_bytes_received
_BYTES_SENT_OFFSET = 200        # struct tcp_info: tcpi_bytes_sent, which counts what was sent again too,
_BYTES_SENT_AGAIN_OFFSET = 208  # so tcpi_bytes_retrans is taken off: a busy machine must not change the count


def socket_counters() -> dict[tuple[str, str], tuple[int, int]]:
    """Return {(local address, peer address): (bytes sent, bytes received)} for this process's TCP connections.

    Addresses are "host:port" strings. Empty where the kernel does not tell (not Linux).
    """
    counters = {}
    if sys.platform != "linux":
        return counters
    for name in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.stat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as sock:
                if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.type != socket.SOCK_STREAM:
                    continue
                info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                local, peer = (f"{address[0]}:{address[1]}" for address in (sock.getsockname(), sock.getpeername()))
                sent, again, received = (struct.unpack_from("Q", info, offset)[0] for offset in (
                    _BYTES_SENT_OFFSET, _BYTES_SENT_AGAIN_OFFSET, _BYTES_RECEIVED_OFFSET))
                counters[local, peer] = sent - again, received
        except (OSError, struct.error):
            continue
    return counters


def counted_since(before: dict) -> list[tuple[str, str, int, int]]:
    """Return (local, peer, bytes sent, bytes received) of each connection since `before` was read."""
    return [(*ends, sent - before.get(ends, (0, 0))[0], received - before.get(ends, (0, 0))[1])
            for ends, (sent, received) in socket_counters().items()]


def bytes_between_ranks(tables: list[list]) -> list[list[int]]:
    """Join the ranks' connection tables into a matrix: entry [i][j] = bytes that rank i sent to rank j.

    A connection belongs to a pair of ranks when both hold an end of it; the store's connections do not.
    """
    owner = {(local, peer): rank for rank, table in enumerate(tables) for local, peer, _, _ in table}
    matrix = [[0] * len(tables) for _ in tables]
    for rank, table in enumerate(tables):
        for local, peer, sent, _ in table:
            other = owner.get((peer, local))
            if other is not None and other != rank:
                matrix[rank][other] += sent
    return matrix
