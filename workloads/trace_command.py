"""`kvsim trace`: what is in a trace, on stdout; or the same requests in kvsim's own format."""

from __future__ import annotations

import sys
from argparse import Namespace
from json import dumps

from sim.workload import Workload
from workloads import own_rows
from workloads.catalog import DATASETS
from workloads.datasets import is_present
from workloads.profile import Lengths, Profile, Sharing, profile


def info(arguments: Namespace, workload: Workload) -> int:
    """Print the profile of *workload*, as text or as one JSON object."""
    found = profile(workload)
    name = type(workload).__name__
    if arguments.json:
        print(dumps({"trace": arguments.trace, "reader": name} | found.as_dict(), allow_nan=False))
    else:
        _print(name, found)
    if arguments.plots is not None:
        from workloads.trace_plots import save

        for path in save(workload, arguments.plots):
            print(path, file=sys.stderr)
    return 0


def convert(arguments: Namespace, workload: Workload) -> int:
    """Write *workload* to the file given."""
    for note in workload.notes:
        print(f"note: {note}", file=sys.stderr)
    num_requests = own_rows.write(workload, arguments.out)
    print(f"{num_requests:,} requests in {arguments.out}")
    return 0


def list_datasets() -> int:
    """Print the catalog: what there is, whether it is here, its reader, licence and source."""
    for name, entry in DATASETS.items():
        here = "here" if is_present(name) else "can be fetched" if entry.files[0].url else "-"
        print(f"{name:<24}{here:<16}{entry.use:<10}{entry.licence}; {entry.source}")
    return 0


def _print(name: str, found: Profile) -> None:
    print(f"reader          {name}, blocks of {found.block_size} tokens")
    sessions = f" in {found.sessions:,} sessions" if found.sessions else ""
    print(f"requests        {found.requests:,}{sessions}, at most {found.most_at_once} at once")
    rate = "" if found.requests_per_s is None else f", {found.requests_per_s:,.3f} a second"
    gaps = "" if found.gap_cv is None else f", CV of the gaps {found.gap_cv:.2f}"
    print(f"span            {found.span_s:,.1f} s{rate}{gaps}")
    _print_lengths("prompt tokens", found.prompt)
    _print_lengths("answer tokens", found.answer)
    if found.sharing is None:
        print("sharing         not known: the trace has lengths only, no content")
    else:
        _print_sharing(found.sharing)
    for note in found.notes:
        print(f"note            {note}")


def _print_lengths(what: str, lengths: Lengths) -> None:
    print(
        f"{what:<16}mean {lengths.mean:,.1f}, p50 {lengths.p50:,.0f}, p90 {lengths.p90:,.0f}, "
        f"p99 {lengths.p99:,.0f}, max {lengths.max:,}, all {lengths.total:,}"
    )


def _print_sharing(sharing: Sharing) -> None:
    print(
        f"units           {sharing.units:,}, {sharing.unique:,} different, "
        f"{sharing.roots:,} first ones"
    )
    print(
        f"ideal hits      {sharing.unit_hit_rate:.2%} of units, {sharing.token_hit_rate:.2%} of "
        f"tokens, {sharing.request_hit_rate:.2%} of a request on average"
    )
    print(
        f"                {sharing.requests_hit:,} requests hit something, "
        f"{sharing.requests_fully_cached:,} everything that has a name"
    )
    _print_counts("hit tokens", sharing.depth, "requests")
    _print_counts("reused after s", sharing.reuse_s, "units")


def _print_counts(what: str, counts: dict[str, int], of: str) -> None:
    shown = ", ".join(f"{name}: {count:,}" for name, count in counts.items() if count)
    print(f"{what:<16}{shown or 'never'} ({of})")
