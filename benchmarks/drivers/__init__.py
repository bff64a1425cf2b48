"""Peers, each run by an interpreter that has it: `python -m benchmarks.drivers.PEER JOB`.

JOB is a JSON object; the last line printed is a row as JSON. Exit status 1 and one line on
standard error if the peer is not installed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from benchmarks.measure import Outcome, observed

Job = dict[str, Any]


def drive(package: str, title: str, run: Callable[[Job], Outcome]) -> None:
    """Do the job on the command line and print its row."""
    job: Job = json.loads(sys.argv[1])
    try:
        installed = version(package)
    except PackageNotFoundError:
        sys.exit("not installed")
    name = f"{package} {installed}, {title}, {job['block_size']}-token blocks"
    print(json.dumps(asdict(observed(name, job["group"], run, job))))
