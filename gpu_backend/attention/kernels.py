"""Triton kernels of our own: store KV by slot, attend through a block table. Strides are given,
so that any layout of a block will do. They are plain functions; `triton_paged` compiles them or has
Triton's interpreter run them.
"""

import triton.language as tl

row_max, row_sum = (
    tl.max,
    tl.sum,
)  # `triton_paged` replaces them where they were made for a compiler


def write_kv(
    keys,
    values,
    key_cache,
    value_cache,
    slots,
    stride_token,
    stride_head,
    cache_block,
    cache_slot,
    cache_head,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """Program (t, h): token t's head h goes to its slot; a slot below 0 is padding.

    *keys*, *values*: [T, K, D], the last dimension contiguous, in the caches too. Caches: strides
    of a block, of a slot in it and of a head, in elements.
    """
    token, head = tl.program_id(0), tl.program_id(1)
    slot = tl.load(slots + token).to(tl.int64)
    if slot >= 0:
        dim = tl.arange(0, HEAD_DIM)
        source = token.to(tl.int64) * stride_token + head * stride_head + dim
        target = (slot // BLOCK_SIZE) * cache_block + (slot % BLOCK_SIZE) * cache_slot
        target += head * cache_head + dim
        tl.store(key_cache + target, tl.load(keys + source))
        tl.store(value_cache + target, tl.load(values + source))


def paged_attention(
    queries,
    key_cache,
    value_cache,
    out,
    block_table,
    seq_lens,
    query_start_loc,
    tile_rows,
    tile_starts,
    scale,
    stride_token,
    stride_head,
    cache_block,
    cache_slot,
    cache_head,
    table_row,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    GROUP: tl.constexpr,
    QUERIES: tl.constexpr,
    LINES: tl.constexpr,
    TILE: tl.constexpr,
):
    """Program (i, h): QUERIES tokens of one row, all GROUP query heads of KV head h.

    Tile i begins at token *tile_starts[i]* of the batch and belongs to row *tile_rows[i]*. A line
    of the tile is one token and one head, LINES >= QUERIES * GROUP. Online softmax in float32 over
    TILE tokens of KV at a time; what lies behind a row's end is never loaded.
    """
    tile, kv_head = tl.program_id(0), tl.program_id(1)
    row = tl.load(tile_rows + tile)
    start = tl.load(tile_starts + tile)
    stop = tl.load(query_start_loc + row + 1)
    seq_len = tl.load(seq_lens + row)
    line = tl.arange(0, LINES)
    token = start + line // GROUP
    head = kv_head * GROUP + line % GROUP
    is_line = (line < QUERIES * GROUP) & (token < stop)
    position = seq_len - stop + token
    dim = tl.arange(0, HEAD_DIM)
    place = token.to(tl.int64)[:, None] * stride_token + head[:, None] * stride_head + dim[None, :]
    q = tl.load(queries + place, mask=is_line[:, None], other=0.0)
    best = tl.full([LINES], float("-inf"), tl.float32)
    total = tl.full([LINES], 0.0, tl.float32)
    sums = tl.full([LINES, HEAD_DIM], 0.0, tl.float32)
    # The last token of the tile sees most; nobody sees beyond it.
    end = tl.minimum(seq_len, seq_len - stop + start + QUERIES)
    for first in range(0, end, TILE):
        seen = first + tl.arange(0, TILE)
        is_there = seen < end
        block = tl.load(block_table + row * table_row + seen // BLOCK_SIZE, mask=is_there, other=0)
        slot = block.to(tl.int64) * cache_block + (seen % BLOCK_SIZE) * cache_slot
        slot += kv_head * cache_head
        k = tl.load(key_cache + slot[None, :] + dim[:, None], mask=is_there[None, :], other=0.0)
        v = tl.load(value_cache + slot[:, None] + dim[None, :], mask=is_there[:, None], other=0.0)
        scores = tl.dot(q, k, input_precision="ieee") * scale
        may_see = is_there[None, :] & (seen[None, :] <= position[:, None])
        scores = tl.where(may_see, scores, float("-inf"))
        larger = tl.maximum(best, row_max(scores, axis=1))
        safe = tl.where(larger == float("-inf"), 0.0, larger)  # a line that sees nothing yet
        weights = tl.exp(scores - safe[:, None])
        shrink = tl.exp(best - safe)
        total = total * shrink + row_sum(weights, axis=1)
        sums = sums * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        best = larger
    total = tl.where(total == 0.0, 1.0, total)
    tl.store(out + place, (sums / total[:, None]).to(q.dtype), mask=is_line[:, None])
