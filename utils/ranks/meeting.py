"""How the ranks of one machine find each other: a store that is a file, and sockets at an address of their own."""
import datetime
import random
import socket
import sys

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from utils.ranks.refusals import refusal_in

_PATIENCE_SECONDS = 3.0  # so long may the system take to connect this process with itself


class CannotMeet(RuntimeError):
    """The ranks cannot reach each other; the message says why and what to do."""


def join_group(rank: int, job: dict, store_descriptor: int) -> dist.Store:
    """Make the default group; returns the store through which the ranks found each other.

    The store is a file: torch's TCPStore asks the name server for 127.0.0.1's name at every connection, which takes
    five seconds whenever the answer gets lost.

    Raises CannotMeet where the machine does not let the ranks talk.
    """
    store = dist.FileStore(job["store"] or f"/proc/self/fd/{store_descriptor}", job["world_size"])
    options = {}
    if job["backend"] == "nccl":
        torch.cuda.set_device(rank)
        options["device_id"] = torch.device("cuda", rank)
    # the notebook's own limit is shorter and gives a better sentence than gloo's time-out
    limit = datetime.timedelta(seconds=job["timeout"] + 120)
    _let_gloo_use(_own_address())
    try:
        dist.init_process_group(job["backend"], store=store, rank=rank, world_size=job["world_size"], timeout=limit, **options)
    except RuntimeError as error:
        if why := refusal_in(str(error)):
            raise CannotMeet(f"The ranks could not connect to each other: {why}.") from None
        raise
    return dist.PrefixStore("course", store)


def wait_for_all(what: str, store: dist.Store, world_size: int) -> None:
    """Return when every rank has come here with the same word."""
    if store.add(what, 1) == world_size:
        store.set(f"all {what}", "yes")
    store.wait([f"all {what}"], datetime.timedelta(days=1))


def loopback_interface() -> str:
    """The loopback's real name ("lo" on Linux, "lo0" on macOS): gloo is told a name so that it resolves no host."""
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if name.startswith("lo")), "lo")


def _own_address() -> str:
    """An address at which this rank listens.

    All of 127.0.0.0/8 is this machine on Linux. gloo takes whoever connects first for a rank, so at 127.0.0.1 a program
    that tries all ports would break a run, or make it wait for ever; at an address that nobody knows it does not knock.
    """
    own = f"127.{random.randint(1, 254)}.{random.randint(0, 255)}.{random.randint(1, 254)}"
    for address in ([own] if sys.platform == "linux" else []) + ["127.0.0.1"]:
        try:
            with socket.create_server((address, 0)) as server, socket.create_connection(server.getsockname(), _PATIENCE_SECONDS):
                return address
        except TimeoutError as error:
            why = error
            break  # the other address would not answer either
        except OSError as error:
            why = error.strerror
    raise CannotMeet(f"The ranks talk to each other over 127.0.0.1, which does not answer here ({why}). Turn on the loopback "
                     f"interface ('ip link set {loopback_interface()} up'), or allow it in the firewall or sandbox.")


def _let_gloo_use(address: str) -> None:
    """Have every gloo group of this process, also those that the function makes, listen at the address."""
    gloo = dist.ProcessGroupGloo
    plain = gloo.__init__

    def at_the_address(group, store, rank, size, timeout=distributed_c10d.default_pg_timeout, enable_reconfigure=False):
        if enable_reconfigure:  # torch 2.14 has it, and always says that it is off; options of ours do not know it
            return plain(group, store, rank, size, timeout, enable_reconfigure)
        options = timeout
        if isinstance(timeout, datetime.timedelta):
            options = gloo._Options()
            options._devices, options._threads, options._timeout = [gloo.create_device(hostname=address)], 2, timeout
        plain(group, store, rank, size, options)

    gloo.__init__ = at_the_address
