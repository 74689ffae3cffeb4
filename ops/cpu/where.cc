#include "ops/cpu/binary.h"

namespace espalier {
namespace {

// An operand's elements along a row.
template <typename T>
struct Each {
  const T* data;
  T operator[](int64_t i) const { return data[i]; }
};
template <typename T>
struct Same {
  T value;
  T operator[](int64_t) const { return value; }
};

// Calls run(row) for n elements at `data`, `stride` 0 or 1 apart.
template <typename T, typename Run>
void WithRow(const T* data, int64_t stride, const Run& run) {
  if (stride == 0) {
    run(Same<T>{*data});
  } else {
    run(Each<T>{data});
  }
}

// The elements are moved, not looked at: T is any type of their size.
template <typename T>
void Where(const TensorView& condition, const TensorView& a, const TensorView& b,
           const TensorView& y) {
  if (y.num_elements() == 0) return;
  const LoopNest nest = Merge(
      y.dims(), {BroadcastStrides(condition.dims(), y.dims()), BroadcastStrides(a.dims(), y.dims()),
                 BroadcastStrides(b.dims(), y.dims()), DenseStrides(y.dims())});
  const int64_t inner = nest.inner();
  const auto row = [&](const RowOffsets& at, int64_t begin, int64_t end) {
    const auto start = [&](auto* data, size_t k) {
      return data + at[k] + begin * nest.inner_stride(k);
    };
    WithRow(start(condition.as<uint8_t>(), 0), nest.inner_stride(0), [&](auto c) {
      WithRow<T>(start(a.as<T>(), 1), nest.inner_stride(1), [&](auto x) {
        WithRow<T>(start(b.as<T>(), 2), nest.inner_stride(2), [&](auto z) {
          Vectorize(
              [](auto c, auto x, auto z, T* out, int64_t n) {
#pragma omp simd
                for (int64_t i = 0; i < n; ++i) {
                  const T yes = x[i], no = z[i];
                  out[i] = c[i] != 0 ? yes : no;
                }
              },
              c, x, z, y.as<T>() + at[3] + begin, end - begin);
        });
      });
    });
  };
  if (nest.rows() == 1) {
    ParallelFor(inner, 1, [&](int64_t begin, int64_t end) { row(RowOffsets{}, begin, end); });
  } else {
    ParallelFor(nest.rows(), inner, [&](int64_t begin, int64_t end) {
      ForRows(nest, begin, end, [&](const RowOffsets& at) { row(at, 0, inner); });
    });
  }
}

KernelStatus Run(const KernelArgs& args) {
  const TensorView &condition = args.inputs[0], &a = args.inputs[1], &b = args.inputs[2];
  const TensorView& y = args.outputs[0];
  switch (SizeOf(y.dtype())) {
    case 1:
      Where<uint8_t>(condition, a, b, y);
      break;
    case 2:
      Where<uint16_t>(condition, a, b, y);
      break;
    case 4:
      Where<uint32_t>(condition, a, b, y);
      break;
    default:
      Where<uint64_t>(condition, a, b, y);
  }
  return KernelStatus::Ok();
}

KernelStatus RunGradient(const KernelArgs& args) {
  const TensorView &condition = args.inputs[0], &dy = args.inputs[1];
  const uint8_t* c = condition.as<uint8_t>();
  const auto run = [&](auto term, const TensorView& target) {
    if (!target.present()) return;
    binary_internal::Gradient(term, dy, c, condition.dims(), c, condition.dims(), target);
  };
  run([](float dy, uint8_t c, uint8_t) { return c != 0 ? dy : 0.0f; }, args.outputs[0]);
  if (args.outputs.size() > 1) {
    run([](float dy, uint8_t c, uint8_t) { return c != 0 ? 0.0f : dy; }, args.outputs[1]);
  }
  return KernelStatus::Ok();
}

}  // namespace

void RegisterWhereCpu(KernelRegistry& registry) {
  registry.Add("where", [](const KernelSpec&, std::string*) { return MakeKernel(Run); });
  registry.Add("where_grad",
               ViaF32([](const KernelSpec&, std::string*) { return MakeKernel(RunGradient); }));
}

}  // namespace espalier
