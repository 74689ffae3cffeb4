#include <cmath>

#include "ops/cpu/dtype/convert.h"
#include "ops/kernel/packed_weights.h"
#include "tests/gpu/property_inputs.h"
#include "tests/gpu/weight_formats.h"

namespace espalier::gpu_check {
namespace {

HostTensor RandomPacked(int bits, int64_t out, int64_t in, uint64_t seed) {
  const PackedWeights shape{bits, out, in};
  HostTensor tensor =
      HostTensor::Zeros(TensorSpec::Whole({DType::kU8, {shape.blocks(), shape.block_bytes()}}));
  FillPacked(bits, in, seed, &tensor);
  return tensor;
}

HostTensor WeightOf(const Weights& weights, int64_t out, int64_t in, uint64_t seed) {
  if (weights.bits >= 16) return Random(weights.dtype, {out, in}, seed);
  return RandomPacked(weights.bits, out, in, seed);
}

// Weights of 32 bits have the type of x.
KernelSpec ProductSpec(int bits, int64_t out, const std::vector<HostTensor>& inputs,
                       const TensorSpec& output) {
  KernelSpec spec = SpecFor(bits == 32 ? "linear" : "quantized_linear", {}, inputs, output);
  if (bits != 32) spec.attributes = {{"bits", int64_t{bits}}, {"out", out}};
  spec.batch_invariant = true;
  return spec;
}

// Checks that every row of a product has the same bits, alone or in any batch.
std::string CheckProductBatchInvariance(Backend& cuda, DType dtype, const Weights& weights,
                                        int64_t in, int64_t out) {
  const int64_t most = 300;
  const HostTensor x = Random(dtype, {most, in}, 1), weight = WeightOf(weights, out, in, 2);
  const HostTensor bias = Random(dtype, {out}, 3);
  HostTensor whole;
  for (int64_t rows : {most, int64_t{200}, int64_t{129}, int64_t{64}, int64_t{32}, int64_t{17},
                       int64_t{16}, int64_t{8}, int64_t{1}}) {
    for (int64_t begin : {int64_t{0}, most - rows}) {
      std::vector<HostTensor> inputs = {Rows(x, begin, begin + rows), weight, bias};
      std::vector<HostTensor> outputs = {
          HostTensor::Zeros(TensorSpec::Whole({dtype, {rows, out}}))};
      const KernelSpec spec = ProductSpec(weights.bits, out, inputs, outputs[0].spec);
      if (std::string e = cuda.Run(spec, {}, &inputs, &outputs); !e.empty()) return e;
      if (rows == most) whole = outputs[0];
      if (Rows(whole, begin, begin + rows).bytes != outputs[0].bytes) {
        return std::to_string(rows) + " rows from " + std::to_string(begin) +
               " differ from the same rows among " + std::to_string(most);
      }
    }
  }
  return "";
}

// Checks that matrices multiplied by one kernel with the same rows give the same bits as each
// alone.
std::string SeveralAreEachAlone(Backend& cuda, DType dtype, const Weights& weights, int64_t rows) {
  const int64_t in = 320;
  const HostTensor x = Random(dtype, {rows, in}, 1), absent;
  std::vector<HostTensor> all, results;
  std::vector<std::vector<uint8_t>> alone;
  int64_t first_out = 0;
  for (int64_t out : {100, 16, 1, 48, 33, 200, 64, 17, 80, 96}) {
    if (first_out == 0) first_out = out;
    std::vector<HostTensor> inputs = {x, WeightOf(weights, out, in, 10 + out), absent};
    std::vector<HostTensor> outputs = {HostTensor::Zeros(TensorSpec::Whole({dtype, {rows, out}}))};
    results.push_back(outputs[0]);
    all.insert(all.end(), inputs.begin(), inputs.end());
    const KernelSpec spec = ProductSpec(weights.bits, out, inputs, outputs[0].spec);
    if (std::string e = cuda.Run(spec, {}, &inputs, &outputs); !e.empty()) return e;
    alone.push_back(outputs[0].bytes);
  }
  KernelSpec spec = ProductSpec(weights.bits, first_out, all, results[0].spec);
  spec.outputs.clear();
  for (const HostTensor& result : results) spec.outputs.push_back(result.spec);
  if (std::string e = cuda.Run(spec, {}, &all, &results); !e.empty()) return e;
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].bytes != alone[i]) return "matrix " + std::to_string(i) + " differs";
  }
  return "";
}

// Checks that batch-invariant linear agrees with cuBLAS.
std::string BatchInvariantLinearMatchesCublas(Backend& cuda, DType dtype, int64_t rows, int64_t in,
                                              int64_t out) {
  std::vector<HostTensor> inputs = {Random(dtype, {rows, in}, 1), Random(dtype, {out, in}, 2),
                                    Random(dtype, {out}, 3)};
  std::vector<HostTensor> plain = {HostTensor::Zeros(TensorSpec::Whole({dtype, {rows, out}}))};
  std::vector<HostTensor> stable = plain;
  KernelSpec spec = SpecFor("linear", {}, inputs, plain[0].spec);
  if (std::string e = cuda.Run(spec, {}, &inputs, &plain); !e.empty()) return e;
  spec.batch_invariant = true;
  if (std::string e = cuda.Run(spec, {}, &inputs, &stable); !e.empty()) return e;
  for (int64_t i = 0; i < rows * out; ++i) {
    const double a = ValueAt(plain[0], i), b = ValueAt(stable[0], i);
    const double tolerance = dtype == DType::kF32 ? 1e-4 : 0.02 * (1 + std::abs(a));
    if (!(std::abs(a - b) <= tolerance)) {
      return "element " + std::to_string(i) + " is " + std::to_string(b) + ", by cuBLAS " +
             std::to_string(a);
    }
  }
  return "";
}

}  // namespace

void CheckServing(Backend& cuda, const AddVerdict& add) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const std::string type = Name(dtype);
    std::vector<Weights> formats = {{32, dtype}};
    if (dtype == DType::kF32) {
      formats.insert(formats.end(), kNarrowWeights.begin(), kNarrowWeights.end());
    }
    for (const Weights& weights : formats) {
      const std::string what = type + " with weights of " + weights.Name();
      add("batch-invariant product, " + what,
          CheckProductBatchInvariance(cuda, dtype, weights, 512, 200));
      add("batch-invariant product, " + what + ", wide",
          CheckProductBatchInvariance(cuda, dtype, weights, 992, 3500));
      add("batch-invariant product, " + what + ", odd sizes",
          CheckProductBatchInvariance(cuda, dtype, weights, 77, 33));
      for (int64_t rows : {1, 20, 70, 2000}) {
        add("several products, " + what + ", " + std::to_string(rows) + " rows",
            SeveralAreEachAlone(cuda, dtype, weights, rows));
      }
    }
    for (int64_t rows : {1, 40, 300}) {
      add("batch-invariant linear " + type + " against cuBLAS, " + std::to_string(rows) + " rows",
          BatchInvariantLinearMatchesCublas(cuda, dtype, rows, 256, 130));
    }
  }
}

}  // namespace espalier::gpu_check
