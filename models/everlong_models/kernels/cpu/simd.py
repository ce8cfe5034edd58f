"""SIMD intrinsics for the numba kernels: vectors of eight float32, integer dot products, float16 conversion, and atomics.

numba has no explicit vectors, so these are written as LLVM IR. LLVM translates them to the instructions of the processor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic

GROUP = 32
"""Consecutive weights of a row that share one scale and one minimum."""
LANES = 8
"""float32 values in a vector. A head's dimension must be a multiple of it."""
PANEL = 16
"""Output columns that are stored and multiplied together. Six rows of a panel fill an AVX2 processor's registers."""

_float, _int, _index, _byte = ir.FloatType(), ir.IntType(64), ir.IntType(32), ir.IntType(8)
_Lanes, _Shorts, _Ints = (ir.VectorType(of, 8) for of in (_float, ir.IntType(16), _index))
_Halves = ir.VectorType(ir.HalfType(), 8)
_Pairs8, _Pairs16 = (ir.VectorType(ir.IntType(bits), 16) for bits in (8, 16))


def has_float16() -> bool:
    """Return whether numba's target has instructions for float16.

    Without them LLVM would emit a call to a function that does not exist, and the process would crash.
    """
    triple, _, features = cpu_target.target_context.codegen().magic_tuple()
    return "x86" not in triple or "+f16c" in features


class _Code:
    """Writes LLVM instructions at the builder's position. Addresses are int64; offsets to them count float32 values."""

    def __init__(self, context: Any, builder: ir.IRBuilder) -> None:
        self.builder = builder
        # numba's target may differ from this processor. An instruction that the processor lacks would crash the process.
        self._features: str = context.codegen().magic_tuple()[2]

    def number(self, value: int) -> ir.Value:
        return ir.Constant(_int, value)

    def offset(self, address: ir.Value, *floats: ir.Value | int) -> ir.Value:
        for many in floats:
            value = self.number(many) if isinstance(many, int) else many
            address = self.builder.add(address, self.builder.mul(value, self.number(4)))
        return address

    def load(self, address: ir.Value, kind: ir.Type = _float) -> ir.Value:
        return self.builder.load(_at(self.builder, address, kind), align=1 if kind is _Pairs8 else 4)

    def store(self, value: ir.Value, address: ir.Value) -> None:
        align = 2 if value.type in (_Shorts, _Halves) else 4
        self.builder.store(value, _at(self.builder, address, value.type), align=align)

    def half(self, address: ir.Value, first: ir.Value | int) -> ir.Value:
        """Load eight float16 values that start `first` values after `address`, as float32."""
        at = self.builder.mul(self.number(first) if isinstance(first, int) else first, self.number(2))
        place = _at(self.builder, self.builder.add(address, at), _Halves)
        return self.builder.fpext(self.builder.load(place, align=2), _Lanes)

    def spread(self, value: ir.Value, kind: ir.Type = _Lanes) -> ir.Value:
        """Broadcast `value` to all eight lanes."""
        first = self.builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(_index, 0))
        return self.builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), ir.Constant(_Ints, [0] * 8))

    def pairs(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Return a[2n] b[2n] + a[2n+1] b[2n+1] as eight int32, for two vectors of sixteen int16.

        AVX2 has one instruction for it (pmaddwd), which LLVM does not select by itself.
        """
        if "+avx2" in self._features.split(","):
            kind = ir.FunctionType(_Ints, [_Pairs16] * 2)
            return self.builder.call(
                cgutils.get_or_insert_function(self.builder.module, kind, "llvm.x86.avx2.pmadd.wd"), [a, b]
            )
        sums = []
        for n in range(2):
            of = ir.Constant(_Ints, list(range(n, 16, 2)))
            one, other = (self.builder.sext(self.builder.shuffle_vector(x, x, of), _Ints) for x in (a, b))
            sums.append(self.builder.mul(one, other))
        return self.builder.add(*sums)

    def fetch(self, address: ir.Value) -> None:
        """Prefetch the cache line at `address`. The address need not be valid."""
        kinds = [_byte.as_pointer(), _index, _index, _index]
        function = cgutils.get_or_insert_function(
            self.builder.module, ir.FunctionType(ir.VoidType(), kinds), "llvm.prefetch.p0"
        )
        self.builder.call(function, [_at(self.builder, address, _byte), *(_index(n) for n in (0, 3, 1))])

    def high(self, x: ir.Value) -> ir.Value:
        """Return x // 16 for bytes held as 16-bit integers.

        Computed as the upper half of 4,096 x: LLVM would compile a shift to three instructions.
        """
        if "+avx2" not in self._features.split(","):
            return self.builder.lshr(x, ir.Constant(_Pairs16, [4] * 16))
        function = cgutils.get_or_insert_function(
            self.builder.module, ir.FunctionType(_Pairs16, [_Pairs16] * 2), "llvm.x86.avx2.pmulhu.w"
        )
        return self.builder.call(function, [x, ir.Constant(_Pairs16, [1 << 12] * 16)])

    def fma(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """Return a · b + c, rounded once (fused multiply-add)."""
        kind, name = c.type, "llvm.fma.f32" if c.type is _float else "llvm.fma.v8f32"
        function = cgutils.get_or_insert_function(self.builder.module, ir.FunctionType(kind, [kind] * 3), name)
        return self.builder.call(function, [a, b, c])

    def exp(self, x: ir.Value) -> ir.Value:
        """Return e^x = 2^n · e^r with |r| ≤ ln 2 / 2, by the polynomial of Cephes' expf; 0 below −87, ∞ above 88."""
        b = self.builder

        def all_of(number: float) -> ir.Value:
            return ir.Constant(_Lanes, [number] * LANES)

        def bounded(value: ir.Value, how: str, bound: float) -> ir.Value:
            """Clamp `value`; NaN stays NaN."""
            return b.select(b.fcmp_ordered(how, value, all_of(bound)), all_of(bound), value)

        low, high, x = b.fcmp_ordered("<=", x, all_of(-87)), b.fcmp_ordered(">", x, all_of(88)), bounded(x, ">", 88)
        floor = cgutils.get_or_insert_function(b.module, ir.FunctionType(_Lanes, [_Lanes]), "llvm.floor.v8f32")
        n = b.call(floor, [self.fma(x, all_of(1.44269504), all_of(0.5))])
        r = self.fma(n, all_of(2.12194440e-4), self.fma(n, all_of(-0.693359375), x))
        y = all_of(1.9875691500e-4)
        for c in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
            y = self.fma(y, r, all_of(c))
        y = b.fadd(self.fma(b.fmul(y, r), r, r), all_of(1))
        power = b.add(b.fptosi(bounded(n, "<", -126), _Ints), ir.Constant(_Ints, [127] * LANES))
        power = b.bitcast(b.shl(power, ir.Constant(_Ints, [23] * LANES)), _Lanes)
        return b.select(low, all_of(0), b.select(high, all_of(math.inf), b.fmul(y, power)))

    def sum(self, lanes: ir.Value) -> ir.Value:
        parts = [self.builder.extract_element(lanes, ir.Constant(_index, n)) for n in range(LANES)]
        while len(parts) > 1:
            half = len(parts) // 2
            parts = [self.builder.fadd(a, b) for a, b in zip(parts[:half], parts[half:], strict=True)]
        return parts[0]

    def sums(self, a: ir.Value, b: ir.Value, c: ir.Value, d: ir.Value) -> ir.Value:
        """Return the `sum` of each of four vectors, with the same order of additions as `sum`."""

        def added(x: ir.Value, y: ir.Value, *halves: list[int]) -> ir.Value:
            return self.builder.fadd(
                *(self.builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(_index, len(of)), of)) for of in halves)
            )

        a, b, c, d = (added(x, x, [0, 1, 2, 3], [4, 5, 6, 7]) for x in (a, b, c, d))
        a, c = (added(x, y, [0, 1, 4, 5], [2, 3, 6, 7]) for x, y in ((a, b), (c, d)))
        return added(a, c, [0, 2, 4, 6], [1, 3, 5, 7])

    def totals(self, kind: ir.Type, count: int) -> list[ir.Value]:
        """Allocate `count` accumulators, set to zero. The compiler keeps them in registers."""
        none = ir.Constant(kind, 0.0 if kind is _float else [0 if kind is _Ints else 0.0] * LANES)
        places = [cgutils.alloca_once_value(self.builder, none) for _ in range(count)]
        for place in places:
            self.builder.store(none, place)
        return places

    def add(self, a: ir.Value, b: ir.Value, total: ir.Value) -> None:
        self.builder.store(self.fma(a, b, self.builder.load(total)), total)

    def loop(self, count: ir.Value) -> Any:
        return cgutils.for_range(self.builder, count, intp=_int)


def _at(builder: ir.IRBuilder, address: ir.Value, kind: ir.Type) -> ir.Value:
    return builder.inttoptr(address, kind.as_pointer())


def _instructions(arguments: int, write: Callable[..., None]) -> tuple[Any, Any]:
    """Return the signature and generator of a numba intrinsic that takes `arguments` int64 and returns nothing."""

    def generate(context: Any, builder: ir.IRBuilder, _signature: Any, args: Any) -> ir.Value:
        write(_Code(context, builder), *args)
        return context.get_dummy_value()

    return types.void(*(types.int64,) * arguments), generate


@intrinsic
def exp_shifted(_context, x, most, blocks):
    """x ← exp(x − most), for `blocks` vectors."""

    def write(code, x, most, blocks):
        b, most = code.builder, code.spread(most)
        with code.loop(blocks) as block:
            at = code.offset(x, b.mul(block.index, code.number(LANES)))
            code.store(code.exp(b.fsub(code.load(at, _Lanes), most)), at)

    signature, generate = _instructions(3, write)
    return types.void(signature.args[0], types.float32, signature.args[2]), generate


@intrinsic
def silu(_context, x, blocks):
    """x ← x / (1 + exp(−x)), for `blocks` vectors."""

    def write(code, x, blocks):
        b = code.builder
        with code.loop(blocks) as block:
            at = code.offset(x, b.mul(block.index, code.number(LANES)))
            value = code.load(at, _Lanes)
            below = b.fadd(code.exp(b.fneg(value)), ir.Constant(_Lanes, [1.0] * LANES))
            code.store(b.fdiv(value, below), at)

    return _instructions(2, write)


@intrinsic
def min_max(_context, x, least, most):
    """Store the minimum and the maximum of `GROUP` values. If any value is NaN, either result may be NaN."""

    def write(code, x, least, most):
        b = code.builder
        lanes = [code.load(code.offset(x, LANES * n), _Lanes) for n in range(GROUP // LANES)]
        for place, how in ((least, "<"), (most, ">")):
            parts = lanes
            while len(parts) > 1 or parts[0].type is not _float:
                if len(parts) == 1:
                    parts = [b.extract_element(parts[0], ir.Constant(_index, n)) for n in range(LANES)]
                pairs = zip(parts[::2], parts[1::2], strict=True)
                parts = [b.select(b.fcmp_ordered(how, one, other), one, other) for one, other in pairs]
            code.store(parts[0], place)

    return _instructions(3, write)


@intrinsic
def maximum(_context, x, blocks):
    """Return the maximum of `blocks` vectors, at least −∞. NaN is ignored."""

    def generate(context, builder, _signature, args):
        code, none = _Code(context, builder), ir.Constant(_Lanes, [-math.inf] * LANES)
        most = cgutils.alloca_once_value(builder, none)
        with code.loop(args[1]) as block:
            lanes, so_far = (
                code.load(code.offset(args[0], builder.mul(block.index, code.number(LANES))), _Lanes),
                builder.load(most),
            )
            builder.store(builder.select(builder.fcmp_ordered(">", lanes, so_far), lanes, so_far), most)
        parts = [builder.extract_element(builder.load(most), ir.Constant(_index, n)) for n in range(LANES)]
        while len(parts) > 1:
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts = [builder.select(builder.fcmp_ordered(">", *two), *two) for two in pairs]
        return parts[0]

    return types.float32(types.int64, types.int64), generate


@intrinsic
def quantise_16(_context, x, to, scales, groups):
    """Quantise `x` to int16 in groups of 32: x ≈ s · to, with integers up to ±32,767.

    Stores to `scales` the scale s and the sum of x for each group. If the largest magnitude of a group is at most 2^-100, or infinite,
    s is 0.
    """

    def write(code, x, to, scales, groups):
        b = code.builder
        absolute = cgutils.get_or_insert_function(b.module, ir.FunctionType(_Lanes, [_Lanes]), "llvm.fabs.v8f32")
        nearest = cgutils.get_or_insert_function(b.module, ir.FunctionType(_Lanes, [_Lanes]), "llvm.rint.v8f32")
        none, most_of_16 = ir.Constant(_float, 0.0), ir.Constant(_float, 32767.0)
        with code.loop(groups) as group:
            first = b.mul(group.index, code.number(GROUP))
            lanes = [code.load(code.offset(x, first, LANES * n), _Lanes) for n in range(GROUP // LANES)]
            sizes = [b.call(absolute, [part]) for part in lanes]
            one, other = (b.select(b.fcmp_ordered(">", *two), *two) for two in (sizes[:2], sizes[2:]))
            most = b.select(b.fcmp_ordered(">", one, other), one, other)
            parts = [b.extract_element(most, ir.Constant(_index, n)) for n in range(LANES)]
            while len(parts) > 1:
                pairs = zip(parts[::2], parts[1::2], strict=True)
                parts = [b.select(b.fcmp_ordered(">", *two), *two) for two in pairs]
            within = b.and_(
                b.fcmp_ordered(">", parts[0], ir.Constant(_float, 2.0**-100)),
                b.fcmp_ordered("<", parts[0], ir.Constant(_float, math.inf)),
            )
            step = b.select(within, b.fdiv(parts[0], most_of_16), none)
            times = code.spread(b.select(within, b.fdiv(most_of_16, parts[0]), none))
            for n, part in enumerate(lanes):
                # NaN may become any integer: the group's sum is NaN anyway.
                whole = b.fptosi(b.call(nearest, [b.fmul(part, times)]), _Ints)
                at = b.add(to, b.mul(b.add(first, code.number(LANES * n)), code.number(2)))
                code.store(b.trunc(whole, _Shorts), at)
            pair = code.offset(scales, b.mul(group.index, code.number(2)))
            code.store(step, pair)
            code.store(code.sum(b.fadd(b.fadd(*lanes[:2]), b.fadd(*lanes[2:]))), code.offset(pair, 1))

    return _instructions(4, write)


_AHEAD = 2048
"""Prefetch distance in bytes of codes. The processor's own prefetcher stops at the end of a page."""


def _dots(bits: int, rows: int) -> Any:
    """Make the intrinsic for products of `rows` rows with one panel of quantised weights.

        y[m, n] ← Σ_g d[g, n] s[m, g] Σ_k q[g, k, n] x[m, g, k] + c[g, n] t[m, g]

    for `rows` rows m and `PANEL` outputs n; `quantise_16` produces x, s and t. The sum over a group is an integer sum, without
    rounding. Strides count units of four bytes.

    An output's operations and their order do not depend on the number of rows. Panels are read in memory order, because one row is
    bound by memory bandwidth.
    """
    size, wide = 2 * PANEL * bits // 8, PANEL // LANES  # bytes of a panel's weights for two k

    def write(code, codes, scales, x, sums, y, groups, x_stride, sums_stride, y_stride):
        def weights(address: ir.Value) -> list[ir.Value]:
            """Load a panel's codes for two consecutive k, as vectors of eight outputs with the two k interleaved.

            With four bits, a byte holds a code of the first eight outputs in its low half and one of the second eight in its high half.
            """
            found = []
            for part in range(size // (2 * LANES)):
                whole = b.zext(code.load(b.add(address, code.number(2 * LANES * part)), _Pairs8), _Pairs16)
                found += [whole] if bits == 8 else [whole, code.high(whole)]
            return found

        def summed(inner: list[ir.Value], part: int) -> ir.Value:
            """Return the integer sums of one vector of outputs.

            With four bits, the low codes were multiplied as whole bytes: subtract 16 times the sum of the high codes.
            """
            found = b.load(inner[part])
            if bits == 8 or part % 2:
                return found
            return b.sub(found, b.shl(b.load(inner[part + 1]), ir.Constant(_Ints, [4] * LANES)))

        b = code.builder
        x_rows = [code.offset(x, b.mul(code.number(m), x_stride)) for m in range(rows)]
        sums_rows = [code.offset(sums, b.mul(code.number(m), sums_stride)) for m in range(rows)]
        totals = [code.totals(_Lanes, wide) for _ in range(rows)]
        with code.loop(groups) as group:
            inner = [code.totals(_Ints, wide) for _ in range(rows)]
            first = b.mul(group.index, code.number(GROUP // 2))
            ahead = b.add(codes, b.add(b.mul(first, code.number(size)), code.number(_AHEAD)))
            for line in range(GROUP // 2 * size // 64):
                code.fetch(b.add(ahead, code.number(64 * line)))
            with code.loop(code.number(GROUP // 2)) as k:
                at = b.add(first, k.index)
                q = weights(b.add(codes, b.mul(at, code.number(size))))
                for m in range(rows):
                    two = code.spread(code.load(code.offset(x_rows[m], at), _index), _Ints)
                    for part, total in zip(q, inner[m], strict=True):
                        b.store(b.add(b.load(total), code.pairs(part, b.bitcast(two, _Pairs16))), total)
            for m in range(rows):
                pair = code.offset(sums_rows[m], b.mul(group.index, code.number(2)))
                step, sum = (code.spread(code.load(code.offset(pair, n))) for n in range(2))
                at = b.mul(group.index, code.number(2 * PANEL))
                for part in range(wide):
                    d, c = (code.half(scales, b.add(at, code.number(PANEL * n + LANES * part))) for n in range(2))
                    code.add(b.fmul(d, step), b.sitofp(summed(inner[m], part), _Lanes), totals[m][part])
                    code.add(c, sum, totals[m][part])
        for m, row in enumerate(totals):
            for n, total in enumerate(row):
                code.store(b.load(total), code.offset(y, b.mul(code.number(m), y_stride), LANES * n))

    @intrinsic
    def dots(_context, codes, scales, x, sums, y, groups, x_stride, sums_stride, y_stride):
        return _instructions(9, write)

    return dots


def _scores(heads: int, many: int) -> Any:
    """Make the intrinsic scores[h, n] ← query[h] · keys[n], for `heads` queries and `count` times `many` float16 keys.

    A key has `blocks` vectors; `stride` bytes separate two keys. The other strides count float32.
    """

    def write(code, query, query_stride, keys, stride, count, blocks, scores, scores_stride):
        b = code.builder
        queries = [code.offset(query, b.mul(code.number(h), query_stride)) for h in range(heads)]
        found = [code.offset(scores, b.mul(code.number(h), scores_stride)) for h in range(heads)]
        with code.loop(count) as step:
            first = b.mul(step.index, code.number(many))
            places = [b.add(keys, b.mul(b.add(first, code.number(n)), stride)) for n in range(many)]
            totals = [code.totals(_Lanes, many) for _ in range(heads)]
            with code.loop(blocks) as block:
                at = b.mul(block.index, code.number(LANES))
                parts = [code.load(code.offset(one, at), _Lanes) for one in queries]
                for n, place in enumerate(places):
                    key = code.half(place, at)
                    for part, row in zip(parts, totals, strict=True):
                        code.add(part, key, row[n])
            for row, to in zip(totals, found, strict=True):
                lanes = [b.load(total) for total in row]
                code.store(code.sum(*lanes) if many == 1 else code.sums(*lanes), code.offset(to, first))

    @intrinsic
    def scores(_context, query, query_stride, keys, stride, count, blocks, scores, scores_stride):
        return _instructions(8, write)

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
        totals = code.totals(_Lanes, heads * wide)
        for place, total in zip(places, totals, strict=True):
            b.store(code.load(place, _Lanes), total)
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
        return _instructions(7, write)

    return mix


@intrinsic
def store_float16(_context, x, to, blocks):
    """Convert `blocks` vectors from float32 to float16."""

    def write(code, x, to, blocks):
        b = code.builder
        with code.loop(blocks) as block:
            at = b.mul(block.index, code.number(LANES))
            half = b.fptrunc(code.load(code.offset(x, at), _Lanes), _Halves)
            code.store(half, b.add(to, b.mul(at, code.number(2))))

    return _instructions(3, write)


@intrinsic
def load_float16(_context, x, to, blocks):
    """Convert `blocks` vectors from float16 to float32."""

    def write(code, x, to, blocks):
        b = code.builder
        with code.loop(blocks) as block:
            at = b.mul(block.index, code.number(LANES))
            code.store(code.half(x, at), code.offset(to, at))

    return _instructions(3, write)


@intrinsic
def add_low_rank(_context, x, w, y, count):
    """y ← y + Σ_k x[k] w[k], for one panel of outputs; `w` (count, PANEL)."""

    def write(code, x, w, y, count):
        b, wide = code.builder, PANEL // LANES
        totals = code.totals(_Lanes, wide)
        for n, total in enumerate(totals):
            b.store(code.load(code.offset(y, LANES * n), _Lanes), total)
        with code.loop(count) as k:
            number, at = code.spread(code.load(code.offset(x, k.index))), b.mul(k.index, code.number(PANEL))
            for n, total in enumerate(totals):
                code.add(number, code.load(code.offset(w, at, LANES * n), _Lanes), total)
        for n, total in enumerate(totals):
            code.store(b.load(total), code.offset(y, LANES * n))

    return _instructions(4, write)


def _tile(rows: int) -> Any:
    """Make the intrinsic y[m] ← Σ_k x[m, k] w[k], for `rows` rows and `PANEL` columns.

    Strides count float32; `w_stride` separates two k.
    """
    wide = PANEL // LANES

    def write(code, x, w, y, count, x_stride, w_stride, y_stride):
        b = code.builder
        x_rows = [code.offset(x, b.mul(code.number(m), x_stride)) for m in range(rows)]
        totals = [code.totals(_Lanes, wide) for _ in range(rows)]
        with code.loop(count) as k:
            at = code.offset(w, b.mul(k.index, w_stride))
            parts = [code.load(code.offset(at, LANES * n), _Lanes) for n in range(wide)]
            for x_row, row in zip(x_rows, totals, strict=True):
                number = code.spread(code.load(code.offset(x_row, k.index)))
                for part, total in zip(parts, row, strict=True):
                    code.add(number, part, total)
        for m, row in enumerate(totals):
            for n, total in enumerate(row):
                code.store(b.load(total), code.offset(y, b.mul(code.number(m), y_stride), LANES * n))

    @intrinsic
    def tile(_context, x, w, y, count, x_stride, w_stride, y_stride):
        return _instructions(7, write)

    return tile


tile_1, tile_2, tile_4, tile_6 = (_tile(rows) for rows in (1, 2, 4, 6))
# For six, four, two rows and one row.
dots_4, dots_8 = ([_dots(bits, rows) for rows in (6, 4, 2, 1)] for bits in (4, 8))
# For one, two and three heads. `scores`: one or four keys at once. `mix`: two vectors of a value, or as many as the registers hold.
scores_1, scores_4 = ([_scores(heads, many) for heads in (1, 2, 3)] for many in (1, 4))
mix_2, mix_more = (
    [_mix(*shape) for shape in shapes] for shapes in (((1, 2), (2, 2), (3, 2)), ((1, 8), (2, 4), (3, 4)))
)


@intrinsic
def float_pointer(_context, address):
    return types.CPointer(types.float32)(types.int64), lambda _, builder, __, args: _at(builder, args[0], _float)


@intrinsic
def double_pointer(_context, address):
    kind = ir.DoubleType()
    return types.CPointer(types.float64)(types.int64), lambda _, builder, __, args: _at(builder, args[0], kind)


@intrinsic
def int_pointer(_context, address):
    return types.CPointer(types.int64)(types.int64), lambda _, builder, __, args: _at(builder, args[0], _int)


@intrinsic
def byte_pointer(_context, address):
    return types.CPointer(types.uint8)(types.int64), lambda _, builder, __, args: _at(builder, args[0], _byte)


@intrinsic
def address(_context, array):
    """Return the address of an array's first element."""

    def generate(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.ptrtoint(data, _int)

    return types.int64(array), generate


@intrinsic
def fetch_add(_context, address):
    """Return the int64 at `address` and increment it atomically."""

    def generate(_context, builder, _signature, args):
        return builder.atomic_rmw("add", _at(builder, args[0], _int), ir.Constant(_int, 1), "seq_cst")

    return types.int64(types.int64), generate


@intrinsic
def load_acquire(_context, address):
    """Return the int64 at `address` with acquire ordering: writes made before it was set are visible."""

    def generate(_context, builder, _signature, args):
        return builder.load_atomic(_at(builder, args[0], _int), "acquire", 8)

    return types.int64(types.int64), generate
