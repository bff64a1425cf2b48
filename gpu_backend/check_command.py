"""`kvsim gpu check`: every step of a run, layer by layer."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from gpu_backend.attention import choose_device
from gpu_backend.trace import StepTrace
from gpu_backend.trace_file import is_step_trace, load, save
from sim.errors import ConfigError
from sim.extras import is_installed


def check(arguments: Namespace) -> int:
    """Check a run; 1 if anything is wrong."""
    if arguments.mutants:
        from gpu_backend.mutant_table import print_table

        return print_table(with_torch=arguments.tokens > 0 and is_installed("torch"))
    if arguments.target is None:
        raise ConfigError("gpu check: name a configuration or a step trace, or give --mutants")
    if arguments.tokens > 0 and is_installed("torch"):
        from gpu_backend.attention import make_backend

        device = choose_device(arguments.device)  # what cannot be is told before the long run
        dtype = _dtype(arguments, device)
        make_backend(arguments.backend, device, dtype)
        _model(arguments, device, dtype)
    broken = False
    for label, trace in _traces(arguments):
        if arguments.save:
            save(trace, arguments.save)
        broken |= _check_one(label, trace, arguments)
    return int(broken)


def _traces(arguments: Namespace) -> Iterator[tuple[str, StepTrace]]:
    if is_step_trace(arguments.target):
        yield arguments.target.name, load(arguments.target)
        return
    from gpu_backend.configured import traces

    found = False
    for label, trace in traces(arguments.target, arguments.policy, one=bool(arguments.save)):
        found = True
        yield label, trace
    if not found:
        raise ConfigError(f"{arguments.target}: no policy has a manager with block ids")


def _check_one(label: str, trace: StepTrace, arguments: Namespace) -> bool:
    from gpu_backend.check import check_trace
    from gpu_backend.metadata import capture_sizes

    sizes = capture_sizes(256, 8192)
    report = check_trace(trace, sizes=sizes)
    print(
        f"{label}: {report.num_steps:,} steps, {report.num_rows:,} rows, "
        f"{report.num_tokens:,} tokens, {report.num_reads:,} slots read"
    )
    _say(report.is_clean, "metadata, pool, L0", report)
    broken = not report.is_clean
    if arguments.tokens <= 0:
        print("        L1 was not asked for")
    elif not is_installed("torch"):
        print("        L1 not run: torch is not installed; pip install 'kvsim[torch]'")
    else:
        broken |= _check_tensors(trace.head(arguments.tokens), arguments, sizes)
    return broken


def _check_tensors(trace: StepTrace, arguments: Namespace, sizes: list[int]) -> bool:
    from gpu_backend.attention import make_backend
    from gpu_backend.verify import verify_trace

    device = choose_device(arguments.device)
    dtype = _dtype(arguments, device)
    one_thread(device)
    verdict = verify_trace(
        trace,
        backend=make_backend(arguments.backend, device, dtype),
        model=_model(arguments, device, dtype),
        dtype=dtype,
        device=device,
        sizes=sizes,
    )
    output = f"{verdict.worst_output:.1e}" if dtype in ("float64", "float32") else "not compared"
    what = (
        f"L1 {arguments.model} {verdict.backend} {dtype} on {device}: "
        f"first {verdict.num_steps:,} steps, {verdict.num_tokens:,} tokens; "
        f"worst relative error: output {output}, KV {verdict.worst_kv:.1e}"
    )
    _say(verdict.is_clean, what, verdict)
    return not verdict.is_clean


def _dtype(arguments: Namespace, device: str) -> str:
    exact = (device, arguments.backend, arguments.model) == ("cpu", "reference", "tiny")
    return str(arguments.dtype or ("float64" if exact else "float32"))


def _model(arguments: Namespace, device: str, dtype: str) -> Any:
    """The decoder that was asked for; None: the tiny one."""
    if arguments.model == "tiny":
        return None
    import torch

    from gpu_backend.hf import HFDecoder

    return HFDecoder(arguments.model, dtype=getattr(torch, dtype), device=device)


def _say(fine: bool, what: str, report: Any) -> None:
    print(f"{'ok' if fine else 'FAILED':<7} {what}")
    for finding in report.findings[:10]:
        print(f"        {finding}")
    for layer, count in report.counts.items():
        print(f"        {layer}: {count:,} findings")


def one_thread(device: str) -> None:
    """Small tensors are slower on several threads, and slower still on a busy machine."""
    import torch

    if device == "cpu":
        torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = False
