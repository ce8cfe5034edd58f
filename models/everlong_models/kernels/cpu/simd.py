"""SIMD for the numba kernels: a writer of LLVM vector instructions, and the intrinsics on whole vectors.

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

FLOAT, INT64, INT32, BYTE = ir.FloatType(), ir.IntType(64), ir.IntType(32), ir.IntType(8)
VECTOR, SHORTS, INTS = (ir.VectorType(of, 8) for of in (FLOAT, ir.IntType(16), INT32))
HALVES = ir.VectorType(ir.HalfType(), 8)
PAIRS_8, PAIRS_16 = (ir.VectorType(ir.IntType(bits), 16) for bits in (8, 16))


def has_float16() -> bool:
    """Return whether numba's target has instructions for float16.

    Without them LLVM would emit a call to a function that does not exist, and the process would crash.
    """
    triple, _, features = cpu_target.target_context.codegen().magic_tuple()
    return "x86" not in triple or "+f16c" in features


def supports_vnni(features: str) -> bool:
    """Return whether these features of LLVM, such as `+avx2,-avx512f`, include AVX-512 with VNNI."""
    return {"+avx512vnni", "+avx512bw", "+avx512vl", "+f16c"} <= set(features.split(","))


class Code:
    """Writes LLVM instructions at the builder's position. Addresses are int64; offsets to them count float32 values."""

    def __init__(self, context: Any, builder: ir.IRBuilder) -> None:
        self.builder = builder
        # numba's target may differ from this processor. An instruction that the processor lacks would crash the process.
        self._features: str = context.codegen().magic_tuple()[2]

    def number(self, value: int) -> ir.Value:
        return ir.Constant(INT64, value)

    def offset(self, address: ir.Value, *floats: ir.Value | int) -> ir.Value:
        for many in floats:
            value = self.number(many) if isinstance(many, int) else many
            address = self.builder.add(address, self.builder.mul(value, self.number(4)))
        return address

    def load(self, address: ir.Value, kind: ir.Type = FLOAT) -> ir.Value:
        return self.builder.load(
            pointer(self.builder, address, kind), align=1 if getattr(kind, "element", kind) == BYTE else 4
        )

    def store(self, value: ir.Value, address: ir.Value) -> None:
        align = 2 if value.type in (SHORTS, HALVES) else 4
        self.builder.store(value, pointer(self.builder, address, value.type), align=align)

    def half(self, address: ir.Value, first: ir.Value | int) -> ir.Value:
        """Load eight float16 values that start `first` values after `address`, as float32."""
        at = self.builder.mul(self.number(first) if isinstance(first, int) else first, self.number(2))
        place = pointer(self.builder, self.builder.add(address, at), HALVES)
        return self.builder.fpext(self.builder.load(place, align=2), VECTOR)

    def spread(self, value: ir.Value, kind: ir.Type = VECTOR) -> ir.Value:
        """Broadcast `value` to all lanes."""
        none, lanes = ir.Constant(kind, ir.Undefined), ir.VectorType(INT32, kind.count)
        first = self.builder.insert_element(none, value, ir.Constant(INT32, 0))
        return self.builder.shuffle_vector(first, none, ir.Constant(lanes, [0] * kind.count))

    def pairs(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Return a[2n] b[2n] + a[2n+1] b[2n+1] as eight int32, for two vectors of sixteen int16.

        AVX2 has one instruction for it (pmaddwd), which LLVM does not select by itself.
        """
        if "+avx2" in self._features.split(","):
            return self.builder.call(self.function("llvm.x86.avx2.pmadd.wd", INTS, PAIRS_16, PAIRS_16), [a, b])
        sums = []
        for n in range(2):
            of = ir.Constant(INTS, list(range(n, 16, 2)))
            one, other = (self.builder.sext(self.builder.shuffle_vector(x, x, of), INTS) for x in (a, b))
            sums.append(self.builder.mul(one, other))
        return self.builder.add(*sums)

    @property
    def has_vnni(self) -> bool:
        """Whether numba's target has AVX-512 VNNI, whose instructions multiply bytes or 16-bit integers and add the products."""
        return supports_vnni(self._features)

    def function(self, name: str, result: ir.Type, *arguments: ir.Type) -> ir.Function:
        """Return an intrinsic of LLVM."""
        return cgutils.get_or_insert_function(self.builder.module, ir.FunctionType(result, arguments), name)

    def fetch(self, address: ir.Value) -> None:
        """Prefetch the cache line at `address`. The address need not be valid."""
        function = self.function("llvm.prefetch.p0", ir.VoidType(), BYTE.as_pointer(), INT32, INT32, INT32)
        self.builder.call(function, [pointer(self.builder, address, BYTE), *(INT32(n) for n in (0, 3, 1))])

    def high(self, x: ir.Value) -> ir.Value:
        """Return x // 16 for bytes held as 16-bit integers.

        Computed as the upper half of 4,096 x: LLVM would compile a shift to three instructions.
        """
        if "+avx2" not in self._features.split(","):
            return self.builder.lshr(x, ir.Constant(PAIRS_16, [4] * 16))
        function = self.function("llvm.x86.avx2.pmulhu.w", PAIRS_16, PAIRS_16, PAIRS_16)
        return self.builder.call(function, [x, ir.Constant(PAIRS_16, [1 << 12] * 16)])

    def fma(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """Return a · b + c, rounded once (fused multiply-add)."""
        kind, name = c.type, "llvm.fma.f32" if c.type is FLOAT else f"llvm.fma.v{c.type.count}f32"
        return self.builder.call(self.function(name, kind, kind, kind, kind), [a, b, c])

    def exp(self, x: ir.Value) -> ir.Value:
        """Return e^x = 2^n · e^r with |r| ≤ ln 2 / 2, by the polynomial of Cephes' expf; 0 below −87, ∞ above 88."""
        b = self.builder

        def all_of(number: float) -> ir.Value:
            return ir.Constant(VECTOR, [number] * LANES)

        def bounded(value: ir.Value, how: str, bound: float) -> ir.Value:
            """Clamp `value`; NaN stays NaN."""
            return b.select(b.fcmp_ordered(how, value, all_of(bound)), all_of(bound), value)

        low, high, x = b.fcmp_ordered("<=", x, all_of(-87)), b.fcmp_ordered(">", x, all_of(88)), bounded(x, ">", 88)
        floor = self.function("llvm.floor.v8f32", VECTOR, VECTOR)
        n = b.call(floor, [self.fma(x, all_of(1.44269504), all_of(0.5))])
        r = self.fma(n, all_of(2.12194440e-4), self.fma(n, all_of(-0.693359375), x))
        y = all_of(1.9875691500e-4)
        for c in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
            y = self.fma(y, r, all_of(c))
        y = b.fadd(self.fma(b.fmul(y, r), r, r), all_of(1))
        power = b.add(b.fptosi(bounded(n, "<", -126), INTS), ir.Constant(INTS, [127] * LANES))
        power = b.bitcast(b.shl(power, ir.Constant(INTS, [23] * LANES)), VECTOR)
        return b.select(low, all_of(0), b.select(high, all_of(math.inf), b.fmul(y, power)))

    def sum(self, lanes: ir.Value) -> ir.Value:
        parts = [self.builder.extract_element(lanes, ir.Constant(INT32, n)) for n in range(LANES)]
        while len(parts) > 1:
            half = len(parts) // 2
            parts = [self.builder.fadd(a, b) for a, b in zip(parts[:half], parts[half:], strict=True)]
        return parts[0]

    def sums(self, a: ir.Value, b: ir.Value, c: ir.Value, d: ir.Value) -> ir.Value:
        """Return the `sum` of each of four vectors, with the same order of additions as `sum`."""

        def added(x: ir.Value, y: ir.Value, *halves: list[int]) -> ir.Value:
            return self.builder.fadd(
                *(self.builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(INT32, len(of)), of)) for of in halves)
            )

        a, b, c, d = (added(x, x, [0, 1, 2, 3], [4, 5, 6, 7]) for x in (a, b, c, d))
        a, c = (added(x, y, [0, 1, 4, 5], [2, 3, 6, 7]) for x, y in ((a, b), (c, d)))
        return added(a, c, [0, 2, 4, 6], [1, 3, 5, 7])

    def totals(self, kind: ir.Type, count: int) -> list[ir.Value]:
        """Allocate `count` accumulators, set to zero. The compiler keeps them in registers."""
        none = ir.Constant(kind, 0.0 if kind is FLOAT else [0.0 if kind.element is FLOAT else 0] * kind.count)
        places = [cgutils.alloca_once_value(self.builder, none) for _ in range(count)]
        for place in places:
            self.builder.store(none, place)
        return places

    def add(self, a: ir.Value, b: ir.Value, total: ir.Value) -> None:
        self.builder.store(self.fma(a, b, self.builder.load(total)), total)

    def loop(self, count: ir.Value) -> Any:
        return cgutils.for_range(self.builder, count, intp=INT64)


def pointer(builder: ir.IRBuilder, address: ir.Value, kind: ir.Type) -> ir.Value:
    return builder.inttoptr(address, kind.as_pointer())


def procedure(arguments: int, write: Callable[..., None]) -> tuple[Any, Any]:
    """Return the signature and generator of a numba intrinsic that takes `arguments` int64 and returns nothing."""

    def generate(context: Any, builder: ir.IRBuilder, _signature: Any, args: Any) -> ir.Value:
        write(Code(context, builder), *args)
        return context.get_dummy_value()

    return types.void(*(types.int64,) * arguments), generate


@intrinsic
def exp_shifted(_context, x, most, blocks):
    """x ← exp(x − most), for `blocks` vectors."""

    def write(code, x, most, blocks):
        b, most = code.builder, code.spread(most)
        with code.loop(blocks) as block:
            at = code.offset(x, b.mul(block.index, code.number(LANES)))
            code.store(code.exp(b.fsub(code.load(at, VECTOR), most)), at)

    signature, generate = procedure(3, write)
    return types.void(signature.args[0], types.float32, signature.args[2]), generate


@intrinsic
def silu(_context, x, blocks):
    """x ← x / (1 + exp(−x)), for `blocks` vectors."""

    def write(code, x, blocks):
        b = code.builder
        with code.loop(blocks) as block:
            at = code.offset(x, b.mul(block.index, code.number(LANES)))
            value = code.load(at, VECTOR)
            below = b.fadd(code.exp(b.fneg(value)), ir.Constant(VECTOR, [1.0] * LANES))
            code.store(b.fdiv(value, below), at)

    return procedure(2, write)


@intrinsic
def gelu(_context, x, blocks):
    """x ← ½ x (1 + tanh(√(2/π) (x + 0.044715 x³))) = x / (1 + exp(−2 √(2/π) (x + 0.044715 x³))), for `blocks` vectors."""

    def write(code, x, blocks):
        b = code.builder
        linear, cubic = (
            ir.Constant(VECTOR, [-2 * math.sqrt(2 / math.pi) * factor] * LANES) for factor in (1.0, 0.044715)
        )
        with code.loop(blocks) as block:
            at = code.offset(x, b.mul(block.index, code.number(LANES)))
            value = code.load(at, VECTOR)
            exponent = b.fmul(value, code.fma(b.fmul(value, value), cubic, linear))
            code.store(b.fdiv(value, b.fadd(code.exp(exponent), ir.Constant(VECTOR, [1.0] * LANES))), at)

    return procedure(2, write)


@intrinsic
def exact_gelu(_context, x, blocks):
    """x ← x Φ(x), for `blocks` vectors; Φ is the normal distribution. Its absolute error is below 1e-7.

    Φ(−z √2) = ½ erfc(z) by formula 7.1.26 of Abramowitz and Stegun.
    """

    def write(code, x, blocks):
        b = code.builder

        def all_of(number):
            return ir.Constant(VECTOR, [number] * LANES)

        magnitude = code.function("llvm.fabs.v8f32", VECTOR, VECTOR)
        with code.loop(blocks) as block:
            at = code.offset(x, b.mul(block.index, code.number(LANES)))
            value = code.load(at, VECTOR)
            t = b.fdiv(all_of(1), code.fma(b.call(magnitude, [value]), all_of(0.3275911 / math.sqrt(2)), all_of(1)))
            sum_ = all_of(0.5 * 1.061405429)
            for factor in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
                sum_ = code.fma(sum_, t, all_of(0.5 * factor))
            tail = b.fmul(b.fmul(sum_, t), code.exp(b.fmul(b.fmul(value, value), all_of(-0.5))))
            positive = b.fcmp_ordered(">", value, all_of(0))
            code.store(b.fmul(value, b.select(positive, b.fsub(all_of(1), tail), tail)), at)

    return procedure(2, write)


@intrinsic
def soft_cap(_context, x, cap, blocks):
    """x ← cap · tanh(x / cap), with tanh(y) = 1 − 2 / (1 + exp(2 y)), for `blocks` vectors. The absolute error is about 1e-7 · cap."""

    def write(code, x, cap, blocks):
        b, cap = code.builder, code.spread(cap)
        one, two = (ir.Constant(VECTOR, [number] * LANES) for number in (1.0, 2.0))
        with code.loop(blocks) as block:
            at = code.offset(x, b.mul(block.index, code.number(LANES)))
            below = b.fadd(code.exp(b.fdiv(b.fmul(two, code.load(at, VECTOR)), cap)), one)
            code.store(b.fmul(cap, b.fsub(one, b.fdiv(two, below))), at)

    signature, generate = procedure(3, write)
    return types.void(signature.args[0], types.float32, signature.args[2]), generate


@intrinsic
def min_max(_context, x, least, most):
    """Store the minimum and the maximum of `GROUP` values. If any value is NaN, either result may be NaN."""

    def write(code, x, least, most):
        b = code.builder
        lanes = [code.load(code.offset(x, LANES * n), VECTOR) for n in range(GROUP // LANES)]
        for place, how in ((least, "<"), (most, ">")):
            parts = lanes
            while len(parts) > 1 or parts[0].type is not FLOAT:
                if len(parts) == 1:
                    parts = [b.extract_element(parts[0], ir.Constant(INT32, n)) for n in range(LANES)]
                pairs = zip(parts[::2], parts[1::2], strict=True)
                parts = [b.select(b.fcmp_ordered(how, one, other), one, other) for one, other in pairs]
            code.store(parts[0], place)

    return procedure(3, write)


@intrinsic
def maximum(_context, x, blocks):
    """Return the maximum of `blocks` vectors, at least −∞. NaN is ignored."""

    def generate(context, builder, _signature, args):
        code, none = Code(context, builder), ir.Constant(VECTOR, [-math.inf] * LANES)
        most = cgutils.alloca_once_value(builder, none)
        with code.loop(args[1]) as block:
            lanes, so_far = (
                code.load(code.offset(args[0], builder.mul(block.index, code.number(LANES))), VECTOR),
                builder.load(most),
            )
            builder.store(builder.select(builder.fcmp_ordered(">", lanes, so_far), lanes, so_far), most)
        parts = [builder.extract_element(builder.load(most), ir.Constant(INT32, n)) for n in range(LANES)]
        while len(parts) > 1:
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts = [builder.select(builder.fcmp_ordered(">", *two), *two) for two in pairs]
        return parts[0]

    return types.float32(types.int64, types.int64), generate


@intrinsic
def store_float16(_context, x, to, blocks):
    """Convert `blocks` vectors from float32 to float16."""

    def write(code, x, to, blocks):
        b = code.builder
        with code.loop(blocks) as block:
            at = b.mul(block.index, code.number(LANES))
            half = b.fptrunc(code.load(code.offset(x, at), VECTOR), HALVES)
            code.store(half, b.add(to, b.mul(at, code.number(2))))

    return procedure(3, write)


@intrinsic
def load_float16(_context, x, to, blocks):
    """Convert `blocks` vectors from float16 to float32."""

    def write(code, x, to, blocks):
        b = code.builder
        with code.loop(blocks) as block:
            at = b.mul(block.index, code.number(LANES))
            code.store(code.half(x, at), code.offset(to, at))

    return procedure(3, write)
