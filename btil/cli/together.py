"""Commands that several processes run together, one per node of a cluster."""

from typing import Annotated

import typer

from btil.arguments import check_index

# A process that has died is noticed after so many seconds.
_NOTICED = 5

Distributed = Annotated[
    str | None,
    typer.Option(
        "--distributed",
        metavar="auto|HOST:PORT,N,K",
        help="Be one of several processes that run this command and share its work: auto where "
        "Slurm, Open MPI or Kubernetes started them; else the address of the first, how many there "
        "are, and which this one is, from 0.",
    ),
]


def join(distributed: str | None) -> bool:
    """Join the other processes; whether this one is the first, which tells and saves.

    Raises:
        ValueError: If it is not said how.
    """
    if distributed is None:
        return True
    import jax

    if distributed == "auto":
        jax.distributed.initialize(heartbeat_timeout_seconds=_NOTICED)
    else:
        try:
            address, number, own = distributed.split(",")
            processes, index = int(number), int(own)
            host, port = address.rsplit(":", 1)
            int(port)
        except ValueError:
            host = ""
        if not host:
            raise ValueError(
                f"--distributed is {distributed!r}; allowed are auto, or HOST:PORT,N,K such as "
                "node1:12345,2,0"
            )
        check_index("--distributed", index, processes)
        jax.distributed.initialize(address, processes, index, heartbeat_timeout_seconds=_NOTICED)
    return jax.process_index() == 0
