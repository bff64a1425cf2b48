"""The tables, pictures, configuration and versions of a study, put into its folder at its end."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from sim.run_folder import CONFIG, PLOTS, REPORTS, TABLES, VERSIONS, disk_errors
from sim.spec.config import FROM_PYTHON
from sim.spec.yaml_text import dump
from sim.studies.provenance import InputFiles, provenance
from sim.studies.run_store import sync_folder, write

if TYPE_CHECKING:
    from sim.results import Results
    from sim.studies.study import Study

WHOLE = "# Every value in effect; kvsim run on this file repeats the run."
PARTIAL = f"# Every value in effect; what is {FROM_PYTHON} cannot be written down or repeated."


def write_study(study: Study, results: Results, folder: Path) -> None:
    """Replace everything in *folder* but its runs; KvsimError if that cannot be done.

    All is written first, then moved into place file by file, the summary last. If that is
    interrupted, running the study again makes the folder whole: its runs are kept.
    """
    with disk_errors(folder), TemporaryDirectory(dir=folder, prefix=".saving-") as name:
        scratch = Path(name)
        results.save(scratch)
        write(scratch / CONFIG, to_yaml(study))
        about = json.dumps(_about(study), indent=2, ensure_ascii=False)
        write(scratch / VERSIONS, f"{about}\n")
        pictures = study.first.report["plots"]
        if pictures:
            from sim.plots import save_all

            save_all(results, scratch / PLOTS, names=pictures)
        _move(scratch, folder)


def to_yaml(study: Study) -> str:
    """The whole configuration as a file for `kvsim run`."""
    text = dump(study.resolved())
    return f"{WHOLE if FROM_PYTHON not in text else PARTIAL}\n{text}"


def _about(study: Study) -> dict[str, object]:
    """Versions and inputs; files of all points."""
    about = provenance(study.first.workload)
    files = InputFiles()
    for _, point in study.points:
        about["workload"]["files"] |= files.of(point.workload)
    return about


def _move(scratch: Path, folder: Path) -> None:
    for name in REPORTS:  # they describe the tables that go
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / PLOTS, ignore_errors=True)
    names = [PLOTS, CONFIG, VERSIONS, *reversed(TABLES)]
    for name in names:
        if (scratch / name).exists():
            os.replace(scratch / name, folder / name)
    sync_folder(folder)
