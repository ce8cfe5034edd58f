"""Float dot products: SIMD intrinsics for tiles of a product, low-rank updates, and attention over float16 keys and values."""

from __future__ import annotations

from typing import Any

from numba.extending import intrinsic

from everlong_models.kernels.cpu.primitives import compiled_as
from everlong_models.kernels.cpu.simd import LANES, PANEL, VECTOR, procedure


def _tile(rows: int) -> Any:
    """Make the intrinsic y[m] ← Σ_k x[m, k] w[k], for `rows` rows and `PANEL` columns.

    Strides count float32; `w_stride` separates two k.
    """
    wide = PANEL // LANES

    def write(code, x, w, y, count, x_stride, w_stride, y_stride):
        b = code.builder
        x_rows = [code.offset(x, b.mul(code.number(m), x_stride)) for m in range(rows)]
        totals = [code.totals(VECTOR, wide) for _ in range(rows)]
        with code.loop(count) as k:
            at = code.offset(w, b.mul(k.index, w_stride))
            parts = [code.load(code.offset(at, LANES * n), VECTOR) for n in range(wide)]
            for x_row, row in zip(x_rows, totals, strict=True):
                number = code.spread(code.load(code.offset(x_row, k.index)))
                for part, total in zip(parts, row, strict=True):
                    code.add(number, part, total)
        for m, row in enumerate(totals):
            for n, total in enumerate(row):
                code.store(b.load(total), code.offset(y, b.mul(code.number(m), y_stride), LANES * n))

    @intrinsic
    def tile(_context, x, w, y, count, x_stride, w_stride, y_stride):
        return procedure(7, write)

    return tile


@intrinsic
def add_low_rank(_context, x, w, y, count):
    """y ← y + Σ_k x[k] w[k], for one panel of outputs; `w` (count, PANEL)."""

    def write(code, x, w, y, count):
        b, wide = code.builder, PANEL // LANES
        totals = code.totals(VECTOR, wide)
        for n, total in enumerate(totals):
            b.store(code.load(code.offset(y, LANES * n), VECTOR), total)
        with code.loop(count) as k:
            number, at = code.spread(code.load(code.offset(x, k.index))), b.mul(k.index, code.number(PANEL))
            for n, total in enumerate(totals):
                code.add(number, code.load(code.offset(w, at, LANES * n), VECTOR), total)
        for n, total in enumerate(totals):
            code.store(b.load(total), code.offset(y, LANES * n))

    return procedure(4, write)


def _scores(heads: int, many: int) -> Any:
    """Make the intrinsic scores[h, n] ← query[h] · keys[n], for `heads` queries and `count` times `many` float16 keys.

    A key has `blocks` vectors; `stride` bytes separate two keys. The other strides count float32.
    """

    def write(code, query, query_stride, keys, stride, count, blocks, scores, scores_stride):
        b = code.builder
        queries = [code.offset(query, b.mul(code.number(h), query_stride)) for h in range(heads)]
        targets = [code.offset(scores, b.mul(code.number(h), scores_stride)) for h in range(heads)]
        with code.loop(count) as step:
            first = b.mul(step.index, code.number(many))
            places = [b.add(keys, b.mul(b.add(first, code.number(n)), stride)) for n in range(many)]
            totals = [code.totals(VECTOR, many) for _ in range(heads)]
            with code.loop(blocks) as block:
                at = b.mul(block.index, code.number(LANES))
                parts = [code.load(code.offset(one, at), VECTOR) for one in queries]
                for n, place in enumerate(places):
                    key = code.half(place, at)
                    for part, row in zip(parts, totals, strict=True):
                        code.add(part, key, row[n])
            for row, to in zip(totals, targets, strict=True):
                lanes = [b.load(total) for total in row]
                code.store(code.sum(*lanes) if many == 1 else code.sums(*lanes), code.offset(to, first))

    @intrinsic
    def scores(_context, query, query_stride, keys, stride, count, blocks, scores, scores_stride):
        return procedure(8, write)

    return scores


def _mix(heads: int, wide: int) -> Any:
    """Make the intrinsic mixed[h] ← mixed[h] + Σ_n scores[h, n] values[n], for `heads` heads and `count` float16 values.

    It covers `wide` vectors of each value; `stride` bytes separate two values. The other strides count float32.
    """

    def write(code, scores, scores_stride, values, stride, count, mixed, mixed_stride):
        b = code.builder
        weights = [code.offset(scores, b.mul(code.number(h), scores_stride)) for h in range(heads)]
        places = [
            code.offset(mixed, b.mul(code.number(h), mixed_stride), LANES * part)
            for h in range(heads)
            for part in range(wide)
        ]
        totals = code.totals(VECTOR, heads * wide)
        for place, total in zip(places, totals, strict=True):
            b.store(code.load(place, VECTOR), total)
        with code.loop(count) as n:
            value = b.add(values, b.mul(n.index, stride))
            parts = [code.half(value, LANES * part) for part in range(wide)]
            for h, one in enumerate(weights):
                weight = code.spread(code.load(code.offset(one, n.index)))
                for part, total in zip(parts, totals[h * wide :], strict=False):
                    code.add(weight, part, total)
        for place, total in zip(places, totals, strict=True):
            code.store(b.load(total), place)

    @intrinsic
    def mix(_context, scores, scores_stride, values, stride, count, mixed, mixed_stride):
        return procedure(7, write)

    return mix


tile_1, tile_2, tile_4, tile_6 = (_tile(rows) for rows in (1, 2, 4, 6))


def _of_heads(name: str, intrinsics: Any) -> Any:
    """Make a function that calls one of three intrinsics: for one, two and three heads."""
    one, two, three = intrinsics

    @compiled_as(name)
    def of_heads(heads, *to):
        if heads == 3:
            three(*to)
        elif heads == 2:
            two(*to)
        else:
            one(*to)

    return of_heads


# `scores`: one or four keys at once. `mix`: two vectors of a value, or as many as the registers hold.
scores_1, scores_4 = (_of_heads(f"scores_{many}", [_scores(heads, many) for heads in (1, 2, 3)]) for many in (1, 4))
mix_2, mix_more = (
    _of_heads(name, [_mix(*shape) for shape in shapes])
    for name, shapes in (("mix_2", ((1, 2), (2, 2), (3, 2))), ("mix_more", ((1, 8), (2, 4), (3, 4))))
)
