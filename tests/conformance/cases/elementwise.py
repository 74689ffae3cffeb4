"""Elementwise operators: one function of each element, or of two with broadcasting."""
import math
import random

import torch
import torch.nn.functional as F

from cases import case, dims, rand
from cases.basic import broadcast_pair

INTEGERS = [torch.int32, torch.int64, torch.int8, torch.uint8]
NARROW = [(torch.bfloat16, 2.0**-7), (torch.float16, 2.0**-10)]  # and the unit in the last place of 1


def uniform(low, high):
    return lambda *d: low + (high - low) * torch.rand(list(d), dtype=torch.float64)


def scaled(scale):
    return lambda *d: rand(*d, scale=scale)


def shape():
    """Now and then without elements."""
    d = dims()
    if random.random() < 0.15:
        d[random.randrange(len(d))] = 0
    return d


def integers(dtype, *d):
    """Small numbers, and some at the ends of the range that both JSON and f64 hold exactly."""
    info = torch.iinfo(dtype)
    low, high = max(info.min, -2**53), min(info.max, 2**53)
    x = torch.randint(max(low, -9), 10, list(d), dtype=dtype)
    ends = torch.tensor([low, low + 1, high - 1, high], dtype=dtype)[torch.randint(0, 4, list(d))]
    return torch.where(torch.rand(list(d)) < 0.3, ends, x)


def special(*d):
    values = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.5, -3e38], dtype=torch.float64)
    return values[torch.randint(0, len(values), list(d))]


def grid(*d):
    """Few values, so that there are ties."""
    return torch.randint(-2, 3, list(d)).double()


def unary(name, reference, *makes, attributes=None, **options):
    """One case per way to make x; `reference(x, **attributes)`, where attributes() draws them."""
    for make in makes or [rand]:
        @case(name, count=5)
        def _(make=make):
            given = attributes() if attributes else {}
            return given, [make(*shape())], lambda x: reference(x, **given), options


def unary_integers(name, reference, dtypes=INTEGERS):
    for dtype in dtypes:
        @case(name, count=2)
        def _(dtype=dtype):
            return {}, [integers(dtype, *shape())], reference, {"forward_only": True}


def unary_narrow(name, reference, make=rand, attributes=None):
    """bf16 and f16: the exact result, rounded once, is off by half a unit in the last place."""
    for dtype, unit in NARROW:
        @case(name, count=2)
        def _(dtype=dtype, unit=unit):
            given = attributes() if attributes else {}
            return (given, [make(*shape()).to(dtype)], lambda x: reference(x.double(), **given),
                    {"forward_only": True, "scale": 0.51 * unit / (2e-6 * math.sqrt(2))})


unary("neg", torch.neg)
unary("abs", torch.abs, rand, scaled(1e20))
unary("sign", torch.sign, rand, grid)
unary_integers("neg", torch.neg, [torch.int32, torch.int64, torch.int8])
unary_integers("abs", torch.abs)
unary_integers("sign", torch.sign)
unary_narrow("neg", torch.neg)

unary("log", torch.log, uniform(1e-3, 5), uniform(0.9, 1.1), lambda *d: torch.exp(rand(*d, scale=20)))
unary("rsqrt", torch.rsqrt, uniform(0.01, 5), lambda *d: torch.exp(rand(*d, scale=5)))
unary("reciprocal", torch.reciprocal, uniform(0.1, 5), uniform(-9, -1))
unary("sin", torch.sin, rand, scaled(100), scaled(1e5), scaled(1e9))
unary("cos", torch.cos, rand, scaled(100), scaled(1e5), scaled(1e9))
unary("tan", torch.tan, uniform(-1.5, 1.5), scaled(1e4))
unary("asin", torch.asin, uniform(-0.999, 0.999))
unary("acos", torch.acos, uniform(-0.999, 0.999))
unary("atan", torch.atan, rand, scaled(1e3))
unary("sinh", torch.sinh, rand, scaled(1e-3), scaled(20))
unary("cosh", torch.cosh, rand, scaled(20))
unary("asinh", torch.asinh, rand, scaled(1e-3), scaled(1e6))
unary("acosh", torch.acosh, uniform(1.001, 3), uniform(1, 1e6))
unary("atanh", torch.atanh, uniform(-0.999, 0.999), scaled(1e-3))
unary("erf", torch.erf, rand, scaled(3))
unary("softplus", lambda x: F.softplus(x, threshold=1000), rand, scaled(20))
unary("softsign", F.softsign, rand, scaled(100))
unary("mish", F.mish, rand, scaled(20))
unary("hard_swish", F.hardswish, rand, scaled(4))
for function in ("log", "sin", "atan", "erf", "softplus", "mish", "hard_swish"):
    reference = {"softplus": F.softplus, "mish": F.mish, "hard_swish": F.hardswish}.get(function)
    unary_narrow(function, reference or getattr(torch, function), uniform(0.1, 4))

for function in ("floor", "ceil", "round"):
    unary(function, getattr(torch, function), scaled(5), lambda *d: grid(*d) / 2 + 1, scaled(1e12))
    unary_narrow(function, getattr(torch, function), scaled(5))


def some(**ranges):
    """A function that draws some of the attributes; the others keep their defaults."""
    return lambda: {name: random.uniform(*r) for name, r in ranges.items() if random.random() < 0.7}


unary("leaky_relu", lambda x, alpha=0.01: F.leaky_relu(x, alpha), attributes=some(alpha=(-0.5, 0.5)))
unary_narrow("leaky_relu", lambda x, alpha=0.01: F.leaky_relu(x, alpha), attributes=some(alpha=(-0.5, 0.5)))
unary("elu", lambda x, alpha=1.0: F.elu(x, alpha), rand, scaled(10), scaled(1e-3), attributes=some(alpha=(0.1, 2)))
unary("celu", lambda x, alpha=1.0: F.celu(x, alpha), rand, scaled(10), attributes=some(alpha=(0.3, 2)))
unary("thresholded_relu", lambda x, alpha=1.0: F.threshold(x, alpha, 0.0), attributes=some(alpha=(-1, 1)))
unary("selu", lambda x, alpha=1.67326319217681884765625, gamma=1.05070102214813232421875:
      gamma * torch.where(x > 0, x, alpha * torch.expm1(x)), rand, scaled(5),
      attributes=some(alpha=(0.5, 2), gamma=(0.5, 2)))
unary("hard_sigmoid", lambda x, alpha=0.2, beta=0.5: torch.clamp(alpha * x + beta, 0, 1), scaled(3),
      attributes=some(alpha=(0.1, 0.5), beta=(0, 1)))
unary("shrink", lambda x, bias=0.0, lambd=0.5:
      torch.where(x < -lambd, x + bias, torch.where(x > lambd, x - bias, x * 0)),
      attributes=some(bias=(-1, 1), lambd=(0, 1)))

unary("is_nan", torch.isnan, special, rand, forward_only=True)
unary("is_inf", lambda x, detect_negative=True, detect_positive=True:
      (x == math.inf) & detect_positive | (x == -math.inf) & detect_negative, special, forward_only=True,
      attributes=lambda: {k: random.random() < 0.5 for k in ("detect_negative", "detect_positive")
                          if random.random() < 0.7})


@case("is_nan")
def _():
    return {}, [special(*shape()).to(random.choice(NARROW)[0])], torch.isnan, {"forward_only": True}


@case("logical_not")
def _():
    return {}, [torch.rand(shape()) < 0.5], torch.logical_not, {"forward_only": True}


def bounds(low, high):
    given = {"min": random.uniform(low, high), "max": random.uniform(low, high)}
    return {k: v for k, v in given.items() if random.random() < 0.7}


@case("clip", count=12)
def _():
    given = bounds(-1, 1)  # min may be above max
    reference = lambda x: torch.clamp(x, **given) if given else x * 1
    return given, [rand(*shape())], reference, {}


@case("clip", count=12)
def _():
    given = bounds(-20, 20)
    inside = {k: math.ceil(v) if k == "min" else math.floor(v) for k, v in given.items()}
    dtype = random.choice(INTEGERS)
    if dtype == torch.uint8:  # PyTorch's bounds would wrap
        inside = {k: max(v, 0) for k, v in inside.items()}
    reference = lambda x: torch.clamp(x, **inside) if inside else x
    return given, [integers(dtype, *shape())], reference, {"forward_only": True}


for name, reference in (("add_scalar", torch.add), ("subtract_scalar", torch.sub), ("multiply_scalar", torch.mul),
                        ("divide_scalar", torch.div)):
    unary(name, lambda x, value, reference=reference: reference(x, value),
          attributes=lambda: {"value": random.choice([-1, 1]) * random.uniform(0.5, 2)})
unary("power_scalar", lambda x, value: x**value, uniform(0.1, 3),
      attributes=lambda: {"value": random.choice([0.0, 0.5, 1.0, 2.0, 3.0, -1.0, random.uniform(-3, 3)])})
unary("power_scalar", lambda x, value: x**value, rand, attributes=lambda: {"value": random.choice([0, 1, 2, 3, 4, 5])})


def binary(name, reference, first=rand, second=rand, attributes=None, count=8, **options):
    @case(name, count=count)
    def _():
        a, b = broadcast_pair()
        return attributes or {}, [first(*a), second(*b)], reference, options


def binary_integers(name, reference, dtypes=INTEGERS, second=integers, attributes=None):
    for dtype in dtypes:
        @case(name, count=4)
        def _(dtype=dtype):
            a, b = broadcast_pair()
            return attributes or {}, [integers(dtype, *a), second(dtype, *b)], reference, {"forward_only": True}


def divisor(dtype, *d):
    """Not 0, and not -1, by which PyTorch cannot divide the least integer."""
    x = integers(dtype, *d)
    return torch.where((x == 0) | (x == torch.tensor(-1).to(dtype)), torch.full_like(x, 3), x)


def small(dtype, *d):
    return torch.randint(-3 if dtype != torch.uint8 else 0, 8, list(d), dtype=dtype)


binary("power", torch.pow, uniform(0.1, 3), scaled(2))
binary("power", torch.pow, grid, grid)
binary("power", torch.pow, rand, lambda *d: torch.randint(-3, 4, list(d)).double())
for dtype in (torch.int32, torch.int64):
    binary_integers("power", torch.pow, [dtype], lambda dtype, *d: torch.randint(0, 8, list(d), dtype=dtype))


@case("power")
def _():
    """Negative exponents of integers: only 1 and -1 have an inverse."""
    a, b = small(torch.int32, 5, 4), -1 - small(torch.int32, 4).abs()
    reference = lambda a, b: torch.where(a == 1, a, torch.where(a == -1, 1 - 2 * (b % 2), a * 0))
    return {}, [a, b], reference, {"forward_only": True}


for name in ("maximum", "minimum"):
    binary(name, getattr(torch, name))
    binary(name, getattr(torch, name), grid, grid)
    binary(name, getattr(torch, name), special, special, forward_only=True)
    binary_integers(name, getattr(torch, name))

away = lambda *d: torch.sign(rand(*d)) * (0.3 + torch.rand(list(d), dtype=torch.float64))
for truncates, reference in ((False, torch.remainder), (True, torch.fmod)):
    binary("modulo", reference, scaled(5), away, {"fmod": truncates})
    binary("modulo", reference, scaled(1e12), away, {"fmod": truncates}, forward_only=True)
    binary_integers("modulo", reference, second=divisor, attributes={"fmod": truncates})


@case("prelu", count=8)
def _():
    a = shape()
    slope = [d if random.random() < 0.6 else 1 for d in a[random.randint(0, len(a)):]]
    return {}, [rand(*a), rand(*slope)], lambda x, s: torch.where(x > 0, x, x * s), {}


for name, reference in (("equal", torch.eq), ("not_equal", torch.ne), ("less", torch.lt), ("less_equal", torch.le),
                        ("greater", torch.gt), ("greater_equal", torch.ge)):
    binary(name, reference, grid, grid, forward_only=True)
    binary(name, reference, special, special, forward_only=True)
    binary(name, reference, lambda *d: special(*d).to(torch.bfloat16), lambda *d: grid(*d).to(torch.bfloat16),
           count=2, forward_only=True)
    binary_integers(name, reference)

flags = lambda *d: torch.rand(list(d)) < 0.5
for name, reference in (("logical_and", torch.logical_and), ("logical_or", torch.logical_or),
                        ("logical_xor", torch.logical_xor), ("equal", torch.eq), ("not_equal", torch.ne)):
    binary(name, reference, flags, flags, forward_only=True)

binary_integers("add", torch.add)
binary_integers("subtract", torch.sub)
binary_integers("multiply", torch.mul, [torch.int8, torch.uint8, torch.int32])
binary_integers("divide", lambda a, b: torch.div(a, b, rounding_mode="trunc"), [torch.int32, torch.int64, torch.uint8],
                lambda dtype, *d: torch.randint(1, 9, list(d), dtype=dtype))


def three():
    a, b = broadcast_pair()
    c = [d if random.random() < 0.6 else 1 for d in torch.broadcast_shapes(a, b)]
    if random.random() < 0.3:
        c = c[random.randint(0, len(c)):]
    return c, a, b


@case("where", count=14)
def _():
    c, a, b = three()
    return {}, [flags(*c), rand(*a), rand(*b)], torch.where, {}


@case("where", count=10)
def _():
    c, a, b = three()
    dtype = random.choice(INTEGERS)
    return {}, [flags(*c), integers(dtype, *a), integers(dtype, *b)], torch.where, {"forward_only": True}


@case("where")
def _():
    c, a, b = three()
    make = random.choice([flags, lambda *d: rand(*d).to(torch.bfloat16), lambda *d: rand(*d).to(torch.float16)])
    return {}, [flags(*c), make(*a), make(*b)], torch.where, {"forward_only": True}


@case("swiglu", count=8)
def _():
    d = shape()
    return {}, [rand(*d, scale=2), rand(*d)], lambda gate, up: F.silu(gate) * up, {}
