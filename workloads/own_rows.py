"""kvsim's trace format as rows: reading them from JSON lines or Parquet, and writing them.

Parquet has one column `row` of JSON text and the header in the schema's metadata: the same rows,
compressed. A written file appears under its name only when it is complete.
"""

from __future__ import annotations

import gzip
import json
import lzma
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

from sim.errors import ConfigError, TraceError
from sim.keys import BlockKeys, ChunkKeys, SegmentKeys, TokenKeys
from sim.request import Request
from sim.workload import Workload
from workloads.lines import lines
from workloads.scoped_keys import ScopedKeys

VERSION = 1
BATCH = 4096  # rows
SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.xz", ".parquet")


def rows(path: Path) -> Iterator[tuple[int, bytes]]:
    """(line or row number from 1, JSON text); the header comes first. TraceError at bad files."""
    if path.suffix != ".parquet":
        yield from lines(path)
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            metadata = file.schema_arrow.metadata or {}
            yield 1, metadata.get(b"kvsim_trace", b"")
            number = 1
            for batch in file.iter_batches(BATCH, columns=["row"]):
                for text in batch.column(0).to_pylist():
                    number += 1
                    yield number, str(text).encode()
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise TraceError(
            f"{path}: is no kvsim trace in Parquet ({reason}); was it copied completely?"
        ) from None


def write(workload: Workload, path: Path) -> int:
    """Write all requests of *workload* to *path*; how many there were.

    The format is told by the suffix: ConfigError if it is none of ours, or if *path* is a file that
    *workload* is read from, also by another name.
    """
    if not path.name.endswith(SUFFIXES):
        raise ConfigError(f"{path}: a trace is written as {', '.join(SUFFIXES)}; name it so")
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        _refuse_input(workload, path)
        path.parent.mkdir(parents=True, exist_ok=True)
        texts = (json.dumps(row_of(request), allow_nan=False) for request in workload)
        header = json.dumps(_header(workload), allow_nan=False)
        how = _write_parquet if path.suffix == ".parquet" else _write_lines
        num_rows = how(unfinished, path.suffix, header, texts)
        unfinished.replace(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror}); name another") from None
    finally:
        unfinished.unlink(missing_ok=True)
    return num_rows


def _refuse_input(workload: Workload, path: Path) -> None:
    """ConfigError if *path*, perhaps a link, is a file that *workload* is read from."""
    if path.exists() and any(one.exists() and path.samefile(one) for one in workload.inputs):
        raise ConfigError(f"{path}: is the trace that is read, and would be lost; name another")


def _header(workload: Workload) -> dict[str, Any]:
    return {
        "kvsim_trace": VERSION,
        "block_size": workload.block_size,
        "has_content": workload.has_content,
        "hints": sorted(workload.hints),
        "notes": list(workload.notes),
    }


def _write_lines(path: Path, suffix: str, header: str, texts: Iterable[str]) -> int:
    num_rows = 0
    with ExitStack() as stack:
        raw: IO[bytes] = stack.enter_context(path.open("wb"))
        if suffix == ".gz":
            file: Any = stack.enter_context(gzip.GzipFile("", "wb", fileobj=raw, mtime=0))
        elif suffix == ".xz":
            file = stack.enter_context(lzma.LZMAFile(raw, "wb"))
        else:
            file = raw
        file.write(f"{header}\n".encode())
        for text in texts:
            file.write(f"{text}\n".encode())
            num_rows += 1
    return num_rows


def _write_parquet(path: Path, suffix: str, header: str, texts: Iterable[str]) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([("row", pa.string())], metadata={"kvsim_trace": header})
    num_rows, batch = 0, list[str]()

    def flush() -> None:
        writer.write_table(pa.table({"row": batch}, schema=schema))
        batch.clear()

    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for text in texts:
            batch.append(text)
            num_rows += 1
            if len(batch) == BATCH:
                flush()
        flush()
    return num_rows


def row_of(request: Request) -> dict[str, Any]:
    """A request as a row; what has its default is left out."""
    row: dict[str, Any] = {
        "request_id": request.request_id,
        "arrival_time": request.arrival_time,
        "num_prompt_tokens": request.num_prompt_tokens,
        "max_tokens": request.max_tokens,
        **_content(request.keys, request),
    }
    optional = ("abort_time", "session", "hints")
    row |= {n: getattr(request, n) for n in optional if getattr(request, n) is not None}
    for name in ("priority", "skip_reading_prefix_cache"):
        if getattr(request, name):
            row[name] = getattr(request, name)
    if request.follows:
        row |= {"follows": list(request.follows), "think_time": request.think_time}
    if request.hints is not None:
        row["hints"] = dict(request.hints)
    return row


def _content(keys: BlockKeys, request: Request) -> dict[str, Any]:
    if type(keys) is ChunkKeys:
        named = keys.num_prompt_tokens
        few = {} if named == request.num_prompt_tokens else {"num_named_tokens": named}
        ids = list(keys.ids)
        return {"chunk_size": keys.chunk_size, "ids": ids, "private_id": keys.output_id, **few}
    if type(keys) is SegmentKeys:
        shareable = keys.num_shareable_tokens
        few = {} if shareable is None else {"num_shareable_tokens": shareable}
        return {"ids": list(keys.ids), "ends": list(keys.ends), **few}
    if type(keys) is TokenKeys:
        return _tokens(keys)
    if type(keys) is ScopedKeys:
        inner = _content(keys.keys, request)
        return inner | {"scopes": [str(keys.scope), *inner.get("scopes", ())]}
    raise ConfigError(
        f"request {request.request_id!r}: keys of type {type(keys).__name__} cannot be written"
    )


def _tokens(keys: TokenKeys) -> dict[str, Any]:
    images = [
        {"identifier": i.identifier, "offset": i.offset, "length": i.length} for i in keys.images
    ]
    few = {"lora": keys.lora and list(keys.lora), "images": images, "salt": keys.salt}
    return {
        "token_ids": keys.tokens(0, len(keys) + 1),
        "hash_function": keys.hash_function,
        **{name: value for name, value in few.items() if value},
    }
