#include "tests/gpu/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <random>

#include "ops/cpu/dtype/convert.h"
#include "ops/kernel/packed_weights.h"

namespace espalier::gpu_check {
namespace {

double EpsilonOf(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return 0x1p-8;
    case DType::kF16:
      return 0x1p-11;
    case DType::kF32:
      return 0x1p-24;
    default:
      return 0;
  }
}

HostTensor Fill(const TensorSpec& spec, const Content& content, std::mt19937_64* random) {
  HostTensor tensor = HostTensor::Zeros(spec);
  if (!tensor.present()) return tensor;
  if (content.kind == Content::kPacked) {
    FillPacked(static_cast<int>(content.below), content.given[0], (*random)(), &tensor);
    return tensor;
  }
  std::uniform_real_distribution<double> uniform(-1, 1), positive(0.05, 1);
  for (int64_t i = 0; i < spec.num_elements(); ++i) {
    double value = 0;
    switch (content.kind) {
      case Content::kUniform:
        value = uniform(*random);
        break;
      case Content::kPositive:
        value = positive(*random);
        break;
      case Content::kIntegers:
        value = static_cast<double>((*random)() % static_cast<uint64_t>(content.below));
        break;
      case Content::kBits:
        value = (*random)() % 4 != 0;
        break;
      case Content::kGiven:
        value = static_cast<double>(content.given[i]);
        break;
      case Content::kPacked:
        break;  // handled above
    }
    SetValue(&tensor, i, value);
  }
  return tensor;
}

// Returns the tolerance. Both backends round once at the end; before that they sum `length` terms
// in different orders, and may round operands of products to the element type.
std::string Compare(const std::string& what, const HostTensor& expected, const HostTensor& found,
                    double length, double slack, DType rounded_to, double* worst) {
  const int64_t n = expected.spec.num_elements();
  double largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double value = std::abs(ValueAt(expected, i));
    if (std::isfinite(value)) largest = std::max(largest, value);
  }
  const double epsilon = std::max(EpsilonOf(expected.spec.dtype), EpsilonOf(rounded_to));
  const double roundings = epsilon == EpsilonOf(DType::kF32) ? 4 : 1;
  const double sums = 0x1p-24 * 8 * std::sqrt(length);
  for (int64_t i = 0; i < n; ++i) {
    const double a = ValueAt(expected, i), b = ValueAt(found, i);
    if (a == b || (std::isnan(a) && std::isnan(b))) continue;
    const double tolerance =
        slack * (epsilon * roundings * (2 * std::abs(a) + largest) + sums * largest) +
        (epsilon > 0 ? 1e-30 : 0);
    const double error = std::abs(a - b);
    if (!(error <= tolerance)) {
      return what + " element " + std::to_string(i) + " of " + ToString(expected.spec.type()) +
             " is " + std::to_string(b) + ", on the CPU " + std::to_string(a) + " (tolerance " +
             std::to_string(tolerance) + ")";
    }
    *worst = std::max(*worst, error / tolerance);
  }
  return "";
}

class Runner {
 public:
  Runner(const Case& c, Backend& reference, Backend& checked)
      : case_(c), reference_(reference), checked_(checked) {}

  // `outputs` are passed with their specs and receive the reference's results.
  Verdict Run(const KernelSpec& spec, const std::vector<HostTensor>& inputs,
              std::vector<HostTensor>* outputs, const std::string& label) {
    Verdict verdict{label, "", 0};
    RunOptions options;
    options.training = case_.training;
    std::vector<HostTensor> expected_in = inputs, found_in = inputs, again_in = inputs;
    std::vector<HostTensor> found = *outputs, again = *outputs;
    // Fills the outputs, to detect elements that a kernel does not write.
    for (HostTensor& t : found) std::fill(t.bytes.begin(), t.bytes.end(), 0x5b);
    if (std::string e = reference_.Run(spec, options, &expected_in, outputs); !e.empty()) {
      verdict.failure = "on the CPU: " + e;
      return verdict;
    }
    if (std::string e = checked_.Run(spec, options, &found_in, &found); !e.empty()) {
      verdict.failure = e;
      return verdict;
    }
    if (std::string e = checked_.Run(spec, options, &again_in, &again); !e.empty()) {
      verdict.failure = "second run: " + e;
      return verdict;
    }
    const double length = static_cast<double>(case_.sum_length);
    const auto check = [&](const char* kind, const std::vector<HostTensor>& a,
                           const std::vector<HostTensor>& b, const std::vector<HostTensor>& c) {
      for (size_t i = 0; i < a.size() && verdict.failure.empty(); ++i) {
        if (!a[i].present()) continue;
        const std::string what = std::string(kind) + " " + std::to_string(i);
        verdict.failure =
            Compare(what, a[i], b[i], length, case_.slack,
                    IsFloat(a[i].spec.dtype) ? case_.rounded_to : DType::kInvalid, &verdict.worst);
        // Even an empty tensor has a byte of memory.
        if (verdict.failure.empty() && b[i].spec.num_elements() > 0 && b[i].bytes != c[i].bytes) {
          verdict.failure = what + " differs from run to run";
        }
      }
    };
    check("output", *outputs, found, again);
    check("input", expected_in, found_in, again_in);
    return verdict;
  }

 private:
  const Case& case_;
  Backend& reference_;
  Backend& checked_;
};

TensorSpec SpecOf(const TensorType& type) {
  return type.dtype == DType::kInvalid ? TensorSpec() : TensorSpec::Whole(type);
}

std::string LabelOf(const Case& c, const std::string& op) {
  std::string label = op;
  for (const CaseInput& input : c.inputs) {
    if (input.type.dtype == DType::kInvalid) continue;
    label += " " + ToString(input.type);
    break;
  }
  return c.name.empty() ? label : label + " (" + c.name + ")";
}

// Returns the forward inputs that `index` of a Gradient list stands for (all, if variadic).
std::vector<size_t> Expand(const OpDef& def, size_t inputs, int index) {
  const size_t first = static_cast<size_t>(index);
  if (first >= def.inputs.size() || !def.inputs[first].variadic) return {first};
  std::vector<size_t> all;
  for (size_t i = first; i < inputs; ++i) all.push_back(i);
  return all;
}

HostTensor At(const std::vector<HostTensor>& tensors, size_t i) {
  return i < tensors.size() ? tensors[i] : HostTensor();
}

Verdict RunGradient(const Case& c, const OpDef& def, const KernelSpec& forward,
                    const std::vector<HostTensor>& inputs, const std::vector<HostTensor>& outputs,
                    std::mt19937_64* random, Runner* runner) {
  KernelSpec spec;
  spec.op = forward.op + "_grad";
  spec.attributes = forward.attributes;
  std::vector<HostTensor> operands, results;
  for (int index : def.gradient->needs_inputs) {
    for (size_t i : Expand(def, inputs.size(), index)) operands.push_back(At(inputs, i));
  }
  for (int k : def.gradient->needs_outputs) operands.push_back(outputs[k]);
  for (const HostTensor& output : outputs) operands.push_back(Fill(output.spec, {}, random));
  for (int index : def.gradient->differentiable) {
    for (size_t i : Expand(def, inputs.size(), index)) {
      const HostTensor input = At(inputs, i);
      results.push_back(IsFloat(input.spec.dtype) ? HostTensor::Zeros(input.spec) : HostTensor());
    }
  }
  for (const HostTensor& t : operands) spec.inputs.push_back(t.spec);
  for (const HostTensor& t : results) spec.outputs.push_back(t.spec);
  return runner->Run(spec, operands, &results, LabelOf(c, spec.op));
}

}  // namespace

void FillPacked(int bits, int64_t in, uint64_t seed, HostTensor* tensor) {
  std::mt19937_64 random(seed);
  std::vector<uint8_t>& bytes = tensor->bytes;
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  const int64_t blocks = tensor->spec.num_elements() / tensor->spec.dims.back();
  const PackedWeights shape{bits, blocks * kPackOutputs, in};
  std::uniform_real_distribution<float> scale(1.0f / 128, 1.0f / 64);
  const auto put = [&](int64_t at, float value) {
    const uint16_t half = F32ToF16(value);
    std::memcpy(bytes.data() + at, &half, sizeof(half));
  };
  for (int64_t block = 0; block < shape.blocks(); ++block) {
    for (int64_t group = 0; group < shape.groups(); ++group) {
      for (int64_t output = 0; output < kPackOutputs; ++output) {
        const int64_t at = block * shape.block_bytes() + 2 * output;
        put(at + shape.scales_at(group), scale(random));
        if (bits == 4) put(at + shape.minima_at(group), -7 * scale(random));
      }
    }
  }
}

std::vector<Verdict> RunCase(const Case& c, const OpRegistry& ops, Backend& reference,
                             Backend& checked) {
  const OpDef* def = ops.Find(c.op);
  if (def == nullptr) return {{LabelOf(c, c.op), "there is no such operator", 0}};
  NodeTypes types;
  types.attributes = c.attributes;
  for (const CaseInput& input : c.inputs) types.inputs.push_back(input.type);
  if (const absl::Status status = InferNode(*def, &types); !status.ok()) {
    return {{LabelOf(c, c.op), std::string(status.message()), 0}};
  }
  KernelSpec spec;
  spec.op = c.op;
  spec.attributes = types.attributes;
  for (const TensorType& type : types.inputs) spec.inputs.push_back(SpecOf(type));
  for (const TensorType& type : types.outputs) spec.outputs.push_back(SpecOf(type));
  if (c.place) c.place(&spec);

  std::mt19937_64 random(1234);
  std::vector<HostTensor> inputs, outputs;
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    inputs.push_back(Fill(spec.inputs[i], c.inputs[i].content, &random));
  }
  for (const TensorSpec& output : spec.outputs) outputs.push_back(HostTensor::Zeros(output));
  Runner runner(c, reference, checked);
  std::vector<Verdict> verdicts = {runner.Run(spec, inputs, &outputs, LabelOf(c, c.op))};
  // Integers have no gradients.
  if (c.gradient && def->has_gradient() && IsFloat(spec.outputs[0].dtype)) {
    verdicts.push_back(RunGradient(c, *def, spec, inputs, outputs, &random, &runner));
  }
  return verdicts;
}

}  // namespace espalier::gpu_check
