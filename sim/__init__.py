"""The simulator: contracts, scheduler, engine, results and the command line.

    from sim import run, load, replay, plots, Engine, Results
    results = run("configs/quickstart.yaml")

Names are loaded when they are first used, so that `import sim` stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Now, not when first used: importing the module later would hide the function of that name.
from sim.replay import replay

if TYPE_CHECKING:
    from sim import plots
    from sim.engine import Engine
    from sim.results import Results, load
    from sim.studies.study import run

_HOMES = {
    "Engine": "sim.engine",
    "Results": "sim.results",
    "plots": "sim.plots",
    "load": "sim.results",
    "run": "sim.studies.study",
}

__all__ = ["Engine", "Results", "load", "plots", "replay", "run"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sim' has no attribute {name!r}")
    module = import_module(_HOMES[name])
    return module if name == "plots" else getattr(module, name)
