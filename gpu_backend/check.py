"""The checks that need no tensor: metadata, pool rules and the fingerprint shadow, over a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from gpu_backend.invariants import Finding, PoolInvariants
from gpu_backend.metadata import AttentionMetadata, build_metadata, padded_num_tokens, step_rows
from gpu_backend.shadow import Shadow
from gpu_backend.trace import StepTrace, Tables, TracedStep

MAX_KEPT = 20
Tamper = Callable[[AttentionMetadata], AttentionMetadata]
"""Changes a step's metadata: how a test breaks what lies between manager and kernel."""


@dataclass(slots=True)
class Report:
    """What a check saw, and what was wrong: the first findings of each layer and how many."""

    num_steps: int = 0
    num_rows: int = 0
    num_tokens: int = 0
    num_reads: int = 0  # slots that L0 compared
    counts: dict[str, int] = field(default_factory=dict)  # layer -> findings
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found."""
        return not self.counts

    def add(self, findings: Iterable[Finding]) -> None:
        """Count *findings* and keep the first of each layer."""
        for finding in findings:
            seen = self.counts.get(finding.layer, 0)
            self.counts[finding.layer] = seen + 1
            if seen < MAX_KEPT:
                self.findings.append(finding)


def metadata_steps(
    trace: StepTrace, *, sizes: Sequence[int] = (), tamper: Tamper | None = None
) -> Iterator[tuple[int, TracedStep, Tables, AttentionMetadata]]:
    """Every step of *trace* with its tables and its metadata, padded to *sizes*."""
    tables = Tables(trace)
    for number, step in enumerate(trace.steps):
        tables.apply(step)
        rows = step_rows(step, tables)
        num_tokens = sum(row.num_scheduled_tokens for row in rows)
        pad_to = padded_num_tokens(num_tokens, sizes) if sizes else None
        metadata = build_metadata(rows, trace.block_size, pad_to=pad_to)
        yield number, step, tables, metadata if tamper is None else tamper(metadata)


def check_trace(
    trace: StepTrace, *, sizes: Sequence[int] = (), tamper: Tamper | None = None
) -> Report:
    """Hold every step of *trace* to the invariants and to L0."""
    null_block = bool(trace.about.get("null_block", True))
    num_blocks = trace.num_blocks + trace.num_offload_blocks
    pool = PoolInvariants(num_blocks, trace.block_size, null_block=null_block)
    shadow, report = Shadow(trace), Report()
    for number, step, tables, metadata in metadata_steps(trace, sizes=sizes, tamper=tamper):
        report.num_steps += 1
        report.num_rows += len(step.rows)
        report.num_tokens += metadata.num_actual_tokens
        report.add(pool.apply(number, step, tables, metadata))
        report.add(shadow.apply(number, step, metadata))
    report.num_reads = shadow.num_reads
    return report
