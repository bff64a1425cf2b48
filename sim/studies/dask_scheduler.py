"""Whether a Dask scheduler answers at an address, before anything is asked of it."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from sim.errors import KvsimError

SECONDS_TO_ANSWER = 10.0


def refuse_no_scheduler(address: str) -> None:
    """KvsimError unless a Dask scheduler answers at *address*.

    Asked before a client is made: one that meets something else breaks in ways of its own, hangs,
    and goes on complaining after it was given up.
    """
    with ThreadPoolExecutor(1) as thread:  # the caller may be in an event loop (notebooks)
        try:
            kind = thread.submit(asyncio.run, _kind_at(address)).result()
        except TimeoutError:
            wrong = f"no answer within {SECONDS_TO_ANSWER:.0f} s"
        except (OSError, ValueError) as error:
            wrong = f"no answer ({' '.join(str(error).split())})"
        except Exception:  # whatever it sent, Dask cannot read it
            wrong = "what answers is no Dask scheduler"
        else:
            wrong = "" if kind == "Scheduler" else f"is no Dask scheduler but a {kind}"
    if wrong:
        raise KvsimError(
            f"--scheduler {address}: {wrong}; give the address that `dask scheduler` prints"
        )


async def _kind_at(address: str) -> str:
    """What Dask calls the server at *address*."""
    from distributed import Security
    from distributed.comm import connect

    async with asyncio.timeout(SECONDS_TO_ANSWER):
        comm = await connect(address, SECONDS_TO_ANSWER, **Security().get_connection_args("client"))
        try:
            await comm.write({"op": "identity", "reply": True})
            return str((await comm.read())["type"])
        finally:
            comm.abort()
