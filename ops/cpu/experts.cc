// group_by, aggregate, aggregate_spec and load_balance_loss.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "ops/cpu/dtype/convert.h"
#include "ops/cpu/simd/vectorize.h"
#include "ops/cpu/threading/parallel.h"

namespace espalier {
namespace {

// The routing of choices to experts. Every run recomputes it; keeps its memory.
struct Routing {
  std::vector<int64_t> counts;     // choices of each expert, dropped ones too
  std::vector<int64_t> positions;  // of each choice: its row of the expert

  // Position of a dropped choice: any from `capacity` on.
  std::string Make(const std::string& op, const TensorView& assign, int64_t experts) {
    counts.assign(static_cast<size_t>(experts), 0);
    positions.resize(static_cast<size_t>(assign.num_elements()));
    for (size_t i = 0; i < positions.size(); ++i) {
      const int32_t expert = assign.as<const int32_t>()[i];
      if (expert < 0 || expert >= experts) {
        return op + ": assign holds " + std::to_string(expert) + " at " + std::to_string(i) +
               ", there are " + std::to_string(experts) + " experts";
      }
      positions[i] = counts[static_cast<size_t>(expert)]++;
    }
    return "";
  }
};

// y = 0, y += x or y += scale * x, and the dot product, over a row.
void AddScaled(float scale, const float* x, float* y, int64_t n) {
  Vectorize(
      [](float scale, const float* x, float* y, int64_t n) {
#pragma omp simd
        for (int64_t j = 0; j < n; ++j) y[j] += scale * x[j];
      },
      scale, x, y, n);
}

float Dot(const float* x, const float* y, int64_t n) {
  return Vectorize(
      [](const float* x, const float* y, int64_t n) {
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < n; ++j) sum += x[j] * y[j];
        return sum;
      },
      x, y, n);
}

int64_t FirstSample(const TensorSpec& spec) { return spec.offset.empty() ? 0 : spec.offset[0]; }

// x, assign -> n of [capacity, E]
std::unique_ptr<Kernel> MakeGroupBy(const KernelSpec& spec, std::string*) {
  return MakeKernel([op = spec.op, routing = std::make_shared<Routing>()](const KernelArgs& args) {
    const TensorView &x = args.inputs[0], &assign = args.inputs[1];
    std::string error = routing->Make(op, assign, static_cast<int64_t>(args.outputs.size()));
    if (!error.empty()) return KernelStatus{error};
    const int64_t width = x.dims()[1], k = assign.dims()[1], first = FirstSample(x.spec) * k;
    for (const TensorView& out : args.outputs) {
      if (out.present()) std::fill_n(out.as<float>(), out.num_elements(), 0.0f);
    }
    ParallelFor(x.dims()[0] * k, width, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const TensorView& out = args.outputs[assign.as<int32_t>()[first + i]];
        const int64_t row = routing->positions[first + i];
        if (!out.present() || row >= out.dims()[0]) continue;
        std::copy_n(x.as<float>() + i / k * width, width, out.as<float>() + row * width);
      }
    });
    return KernelStatus::Ok();
  });
}

// assign, n gradients of [capacity, E] -> dx
std::unique_ptr<Kernel> MakeGroupByGradient(const KernelSpec& spec, std::string*) {
  return MakeKernel([op = spec.op, routing = std::make_shared<Routing>()](const KernelArgs& args) {
    const TensorView &assign = args.inputs[0], &dx = args.outputs[0];
    if (!dx.present()) return KernelStatus::Ok();
    const std::span<const TensorView> grads = args.inputs.subspan(1);
    std::string error = routing->Make(op, assign, static_cast<int64_t>(grads.size()));
    if (!error.empty()) return KernelStatus{error};
    const int64_t width = dx.dims()[1], k = assign.dims()[1], first = FirstSample(dx.spec);
    ParallelFor(dx.dims()[0], width * (k + 1), [&](int64_t begin, int64_t end) {
      for (int64_t s = begin; s < end; ++s) {
        float* const row = dx.as<float>() + s * width;
        std::fill_n(row, width, 0.0f);
        for (int64_t i = (first + s) * k; i < (first + s + 1) * k; ++i) {
          const TensorView& grad = grads[assign.as<int32_t>()[i]];
          const int64_t at = routing->positions[i];
          if (!grad.present() || at >= grad.dims()[0]) continue;
          AddScaled(1.0f, grad.as<float>() + at * width, row, width);
        }
      }
    });
    return KernelStatus::Ok();
  });
}

// gate_values, assign, gate_full, experts... -> y
std::unique_ptr<Kernel> MakeAggregate(const KernelSpec& spec, std::string*) {
  return MakeKernel([op = spec.op, routing = std::make_shared<Routing>()](const KernelArgs& args) {
    const TensorView &gates = args.inputs[0], &assign = args.inputs[1], &y = args.outputs[0];
    const std::span<const TensorView> experts = args.inputs.subspan(3);
    std::string error = routing->Make(op, assign, static_cast<int64_t>(experts.size()));
    if (!error.empty()) return KernelStatus{error};
    const int64_t width = y.dims()[1], k = gates.dims()[1], first = FirstSample(gates.spec) * k;
    ParallelFor(gates.dims()[0], width * (k + 1), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin * k; i < end * k; ++i) {
        float* const row = y.as<float>() + i / k * width;
        if (i % k == 0) std::fill_n(row, width, 0.0f);
        const TensorView& expert = experts[assign.as<int32_t>()[first + i]];
        const int64_t at = routing->positions[first + i];
        if (at >= expert.dims()[0]) continue;
        AddScaled(gates.as<float>()[i], expert.as<float>() + at * width, row, width);
      }
      if (k == 0) {
        std::fill_n(y.as<float>() + begin * width, (end - begin) * width, 0.0f);
      }
    });
    return KernelStatus::Ok();
  });
}

// The gradient of scale * load_balance_loss, the same for all samples.
std::vector<float> BalanceGradient(const Routing& routing, int64_t samples, int64_t choices,
                                   double scale) {
  std::vector<float> row;
  for (int64_t count : routing.counts) {
    row.push_back(choices == 0 ? 0.0f
                               : static_cast<float>(scale * static_cast<double>(count) *
                                                    static_cast<double>(routing.counts.size()) /
                                                    static_cast<double>(choices) /
                                                    static_cast<double>(samples)));
  }
  return row;
}

void FillRows(const std::vector<float>& row, const TensorView& out) {
  const int64_t n = static_cast<int64_t>(row.size());
  for (int64_t s = 0; s < out.dims()[0]; ++s) {
    std::copy(row.begin(), row.end(), out.as<float>() + s * n);
  }
}

// gate_values, assign, experts..., dy -> dgate_values, dgate_full, dexperts...
std::unique_ptr<Kernel> MakeAggregateGradient(const KernelSpec& spec, std::string*) {
  const double lambda = spec.attributes.Float("lambda_balance");
  return MakeKernel([lambda, op = spec.op,
                     routing = std::make_shared<Routing>()](const KernelArgs& args) {
    const TensorView &gates = args.inputs[0], &assign = args.inputs[1], &dy = args.inputs.back();
    const std::span<const TensorView> experts = args.inputs.subspan(2, args.inputs.size() - 3);
    const std::span<const TensorView> dexperts = args.outputs.subspan(2);
    const TensorView &dgates = args.outputs[0], &dfull = args.outputs[1];
    std::string error = routing->Make(op, assign, static_cast<int64_t>(experts.size()));
    if (!error.empty()) return KernelStatus{error};
    const int64_t width = dy.dims()[1], k = gates.dims()[1], first = FirstSample(gates.spec) * k;
    if (dfull.present()) {
      // Shards with other columns of the same samples are summed, so only one of them adds this
      // term.
      const bool here = dy.spec.offset[1] == 0;
      FillRows(
          BalanceGradient(*routing, assign.dims()[0], assign.num_elements(), here ? lambda : 0.0),
          dfull);
    }
    for (const TensorView& out : dexperts) {
      if (out.present()) std::fill_n(out.as<float>(), out.num_elements(), 0.0f);
    }
    ParallelFor(gates.num_elements(), 2 * width, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int32_t expert = assign.as<int32_t>()[first + i];
        const int64_t at = routing->positions[first + i];
        const bool kept = at < experts[expert].dims()[0];
        const float* const row = dy.as<float>() + i / k * width;
        if (dgates.present()) {
          dgates.as<float>()[i] =
              kept ? Dot(row, experts[expert].as<float>() + at * width, width) : 0.0f;
        }
        if (kept && dexperts[expert].present()) {
          AddScaled(gates.as<float>()[i], row, dexperts[expert].as<float>() + at * width, width);
        }
      }
    });
    return KernelStatus::Ok();
  });
}

// gate_values, assign, gate_full, experts... -> y, whose rows are choices.
std::unique_ptr<Kernel> MakeAggregateSpec(const KernelSpec& spec, std::string*) {
  return MakeKernel([op = spec.op, routing = std::make_shared<Routing>()](const KernelArgs& args) {
    const TensorView &gates = args.inputs[0], &assign = args.inputs[1], &y = args.outputs[0];
    const std::span<const TensorView> experts = args.inputs.subspan(3);
    std::string error = routing->Make(op, assign, static_cast<int64_t>(experts.size()));
    if (!error.empty()) return KernelStatus{error};
    const int64_t width = y.dims()[1], first = FirstSample(gates.spec) * gates.dims()[1];
    ParallelFor(y.dims()[0], width, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        float* const row = y.as<float>() + i * width;
        const TensorView& expert = experts[assign.as<int32_t>()[first + i]];
        const int64_t at = routing->positions[first + i];
        if (at < expert.dims()[0]) {
          std::copy_n(expert.as<float>() + at * width, width, row);
        } else {
          std::fill_n(row, width, 0.0f);
        }
      }
    });
    return KernelStatus::Ok();
  });
}

// gate_values, assign, dy -> dgate_full, dexperts...; for the rule see
// ops/operators/aggregate.cc.
std::unique_ptr<Kernel> MakeAggregateSpecGradient(const KernelSpec& spec, std::string*) {
  const double lambda = spec.attributes.Float("lambda_balance");
  const int64_t n = spec.attributes.Int("n");
  return MakeKernel([lambda, n, op = spec.op,
                     routing = std::make_shared<Routing>()](const KernelArgs& args) {
    const TensorView &gates = args.inputs[0], &assign = args.inputs[1], &dy = args.inputs[2];
    const TensorView& dfull = args.outputs[0];
    const std::span<const TensorView> dexperts = args.outputs.subspan(1);
    std::string error = routing->Make(op, assign, n);
    if (!error.empty()) return KernelStatus{error};
    const int64_t width = dy.dims()[1], k = gates.dims()[1], first = FirstSample(gates.spec) * k;
    const std::vector<float> balance =
        BalanceGradient(*routing, assign.dims()[0], assign.num_elements(), lambda);
    for (const TensorView& out : dexperts) {
      if (out.present()) std::fill_n(out.as<float>(), out.num_elements(), 0.0f);
    }
    ParallelFor(gates.dims()[0], 3 * width * k + n, [&](int64_t begin, int64_t end) {
      std::vector<float> errors(static_cast<size_t>(k));
      for (int64_t s = begin; s < end; ++s) {
        float total = 0;
        for (int64_t j = 0; j < k; ++j) {
          const int64_t i = s * k + j;
          const float* const row = dy.as<float>() + i * width;
          total += errors[static_cast<size_t>(j)] = Dot(row, row, width);
          const TensorView& expert = dexperts[static_cast<size_t>(assign.as<int32_t>()[first + i])];
          const int64_t at = routing->positions[first + i];
          if (!expert.present() || at >= expert.dims()[0]) continue;
          AddScaled(gates.as<float>()[i], row, expert.as<float>() + at * width, width);
        }
        if (!dfull.present()) continue;
        float* const full = dfull.as<float>() + s * n;
        std::copy(balance.begin(), balance.end(), full);
        for (int64_t j = 0; total > 0 && j < k; ++j) {
          const int64_t i = s * k + j;
          full[assign.as<int32_t>()[first + i]] +=
              errors[static_cast<size_t>(j)] / total - (1.0f - gates.as<float>()[i]);
        }
        float mean = 0;
        for (int64_t e = 0; e < n; ++e) mean += full[e] / static_cast<float>(n);
        for (int64_t e = 0; e < n; ++e) full[e] -= mean;
      }
    });
    return KernelStatus::Ok();
  });
}

// gate_full, assign -> f32
std::unique_ptr<Kernel> MakeBalance(const KernelSpec& spec, std::string*) {
  const int64_t count = spec.attributes.Int("count");
  return MakeKernel([count, op = spec.op,
                     routing = std::make_shared<Routing>()](const KernelArgs& args) {
    const TensorView &gates = args.inputs[0], &assign = args.inputs[1];
    std::string error = routing->Make(op, assign, gates.dims()[1]);
    if (!error.empty()) return KernelStatus{error};
    const std::vector<float> weights = BalanceGradient(*routing, count, assign.num_elements(), 1.0);
    const int64_t n = gates.dims()[1];
    double loss = 0;
    for (int64_t s = 0; s < gates.dims()[0]; ++s) {
      loss += Dot(weights.data(), gates.as<float>() + s * n, n);
    }
    *args.outputs[0].as<float>() = static_cast<float>(loss);
    return KernelStatus::Ok();
  });
}

// gate_full, assign, d loss -> dgate_full
std::unique_ptr<Kernel> MakeBalanceGradient(const KernelSpec& spec, std::string*) {
  const int64_t count = spec.attributes.Int("count");
  return MakeKernel([count, op = spec.op,
                     routing = std::make_shared<Routing>()](const KernelArgs& args) {
    const TensorView &gates = args.inputs[0], &assign = args.inputs[1];
    if (!args.outputs[0].present()) return KernelStatus::Ok();
    std::string error = routing->Make(op, assign, gates.dims()[1]);
    if (!error.empty()) return KernelStatus{error};
    FillRows(BalanceGradient(*routing, count, assign.num_elements(), *args.inputs[2].as<float>()),
             args.outputs[0]);
    return KernelStatus::Ok();
  });
}

}  // namespace

void RegisterExpertsCpu(KernelRegistry& registry) {
  registry.Add("group_by", ViaF32(MakeGroupBy));
  registry.Add("group_by_grad", ViaF32(MakeGroupByGradient));
  registry.Add("aggregate", ViaF32(MakeAggregate));
  registry.Add("aggregate_grad", ViaF32(MakeAggregateGradient));
  registry.Add("aggregate_spec", ViaF32(MakeAggregateSpec));
  registry.Add("aggregate_spec_grad", ViaF32(MakeAggregateSpecGradient));
  registry.Add("load_balance_loss", ViaF32(MakeBalance));
  registry.Add("load_balance_loss_grad", ViaF32(MakeBalanceGradient));
}

}  // namespace espalier
