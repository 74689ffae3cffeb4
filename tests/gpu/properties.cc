#include "tests/gpu/properties.h"

#include <cmath>
#include <cstring>
#include <functional>
#include <random>

namespace espalier::gpu_check {
namespace {

HostTensor Random(DType dtype, Dims dims, uint64_t seed) {
  HostTensor tensor = HostTensor::Zeros(TensorSpec::Whole({dtype, std::move(dims)}));
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> uniform(-1, 1);
  for (int64_t i = 0; i < tensor.spec.num_elements(); ++i) SetValue(&tensor, i, uniform(random));
  return tensor;
}

HostTensor Ints(std::vector<int32_t> values) {
  HostTensor tensor =
      HostTensor::Zeros(TensorSpec::Whole({DType::kI32, {static_cast<int64_t>(values.size())}}));
  std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  return tensor;
}

// Rows [begin, end) of a tensor.
HostTensor Rows(const HostTensor& tensor, int64_t begin, int64_t end) {
  Dims dims = tensor.spec.dims;
  const size_t bytes = tensor.bytes.size() / static_cast<size_t>(dims[0]);
  dims[0] = end - begin;
  HostTensor rows{TensorSpec::Whole({tensor.spec.dtype, dims}), {}};
  rows.bytes.assign(tensor.bytes.begin() + begin * bytes, tensor.bytes.begin() + end * bytes);
  return rows;
}

KernelSpec SpecFor(const std::string& op, Attributes attributes,
                   const std::vector<HostTensor>& inputs, const TensorSpec& output) {
  KernelSpec spec;
  spec.op = op;
  spec.attributes = std::move(attributes);
  for (const HostTensor& t : inputs) spec.inputs.push_back(t.spec);
  spec.outputs = {output};
  return spec;
}

// Every row of a row-stable linear comes out the same, alone or among any number of others.
std::string LinearIsRowStable(Backend& cuda, DType dtype, int64_t in, int64_t out) {
  const int64_t most = 300;
  const HostTensor x = Random(dtype, {most, in}, 1), weight = Random(dtype, {out, in}, 2);
  const HostTensor bias = Random(dtype, {out}, 3);
  HostTensor whole;
  for (int64_t rows : {most, int64_t{129}, int64_t{64}, int64_t{17}, int64_t{16}, int64_t{1}}) {
    for (int64_t begin : {int64_t{0}, most - rows}) {
      std::vector<HostTensor> inputs = {Rows(x, begin, begin + rows), weight, bias};
      std::vector<HostTensor> outputs = {
          HostTensor::Zeros(TensorSpec::Whole({dtype, {rows, out}}))};
      KernelSpec spec = SpecFor("linear", {}, inputs, outputs[0].spec);
      spec.row_stable = true;
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

// A row-stable linear agrees with the other one.
std::string StableLinearIsRight(Backend& cuda, DType dtype, int64_t rows, int64_t in, int64_t out) {
  std::vector<HostTensor> inputs = {Random(dtype, {rows, in}, 1), Random(dtype, {out, in}, 2),
                                    Random(dtype, {out}, 3)};
  std::vector<HostTensor> plain = {HostTensor::Zeros(TensorSpec::Whole({dtype, {rows, out}}))};
  std::vector<HostTensor> stable = plain;
  KernelSpec spec = SpecFor("linear", {}, inputs, plain[0].spec);
  if (std::string e = cuda.Run(spec, {}, &inputs, &plain); !e.empty()) return e;
  spec.row_stable = true;
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

// A token's attention is the same bits as the next token of its sequence, in a tree, and in a batch
// with others.
std::string AttentionIsRowStable(Backend& cuda, DType dtype) {
  constexpr int32_t kTokens = 100;
  const int64_t dim = 64, heads = 4, kv_heads = 2, slots = 256;
  const HostTensor q = Random(dtype, {2, heads * dim}, 1);
  const HostTensor k = Random(dtype, {2, kv_heads * dim}, 2);
  const HostTensor v = Random(dtype, {2, kv_heads * dim}, 3);
  const HostTensor k_cache = Random(dtype, {slots, kv_heads * dim}, 4);
  const HostTensor v_cache = Random(dtype, {slots, kv_heads * dim}, 5);
  std::vector<int32_t> sequence;
  for (int32_t i = 0; i < kTokens; ++i) sequence.push_back(i * 2 + 1);
  std::vector<int32_t> with_own = sequence;
  with_own.push_back(200);
  const auto run = [&](int64_t rows, std::vector<HostTensor> tables, HostTensor* row) {
    std::vector<HostTensor> inputs = {Rows(q, 0, rows), Rows(k, 0, rows), Rows(v, 0, rows), k_cache,
                                      v_cache};
    for (HostTensor& t : tables) inputs.push_back(std::move(t));
    std::vector<HostTensor> outputs = {HostTensor::Zeros(inputs[0].spec)};
    KernelSpec spec =
        SpecFor("paged_attention", {{"head_dim", dim}, {"scale", 0.0}}, inputs, outputs[0].spec);
    spec.row_stable = true;
    std::string error = cuda.Run(spec, {}, &inputs, &outputs);
    if (error.empty()) *row = Rows(outputs[0], 0, 1);
    return error;
  };
  const int32_t n = kTokens;
  HostTensor next, node, together;
  // As the token after the last: its slot is the last of the sequence.
  if (std::string e = run(1,
                          {Ints({200}), Ints({0}), Ints({n + 1}), Ints({0, 0}), Ints({7}),
                           Ints({0, n + 1}), Ints(with_own)},
                          &next);
      !e.empty()) {
    return e;
  }
  // As a tree's root in another slot.
  if (std::string e = run(1,
                          {Ints({222}), Ints({0}), Ints({n}), Ints({0, 1}), Ints({222}),
                           Ints({0, n}), Ints(sequence)},
                          &node);
      !e.empty()) {
    return e;
  }
  if (std::string e = run(2,
                          {Ints({222, 230}), Ints({0, 0}), Ints({n, n}), Ints({0, 1, 3}),
                           Ints({222, 222, 230}), Ints({0, n}), Ints(sequence)},
                          &together);
      !e.empty()) {
    return e;
  }
  if (next.bytes != node.bytes) return "a tree node differs from the next token of the sequence";
  if (node.bytes != together.bytes) return "a row differs when another one rides along";
  return "";
}

// Parameters that one kernel moves together get the bits that they get one by one.
std::string UpdatesTogetherAreUpdatesAlone(Backend& cuda, const std::string& op, int states) {
  Attributes attributes;
  if (op == "rmsprop_update") attributes = {{"momentum", 0.5}, {"centered", true}};
  const HostTensor absent;
  HostTensor hyper = Random(DType::kF32, {2}, 1);
  SetValue(&hyper, 0, 0.01);
  SetValue(&hyper, 1, 3);
  std::vector<HostTensor> all, parameters;
  std::vector<std::vector<uint8_t>> alone;
  const int operands = 4 + states;
  for (int64_t n : {int64_t{3}, int64_t{0}, int64_t{70001}, int64_t{1}, int64_t{4096}}) {
    const uint64_t seed = static_cast<uint64_t>(n) * 10 + 2;
    std::vector<HostTensor> inputs = {Random(DType::kF32, {n}, seed),
                                      Random(DType::kF32, {n}, seed + 1), absent, hyper};
    for (int i = 0; i < states; ++i) {
      HostTensor state = Random(DType::kF32, {n}, seed + 2 + i);
      for (int64_t j = 0; j < n; ++j) SetValue(&state, j, std::abs(ValueAt(state, j)));
      inputs.push_back(state);
    }
    all.insert(all.end(), inputs.begin(), inputs.end());
    parameters.push_back(inputs[0]);
    std::vector<HostTensor> outputs = {inputs[0]};
    const KernelSpec spec = SpecFor(op, attributes, inputs, inputs[0].spec);
    if (std::string e = cuda.Run(spec, {}, &inputs, &outputs); !e.empty()) return e;
    alone.push_back(outputs[0].bytes);
    for (int i = 4; i < operands; ++i) alone.push_back(inputs[i].bytes);
  }
  std::vector<HostTensor> outputs = parameters;
  KernelSpec spec = SpecFor(op, attributes, all, parameters[0].spec);
  spec.outputs.clear();
  for (const HostTensor& parameter : parameters) spec.outputs.push_back(parameter.spec);
  if (std::string e = cuda.Run(spec, {}, &all, &outputs); !e.empty()) return e;
  size_t next = 0;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].bytes != alone[next++]) return "parameter " + std::to_string(i) + " differs";
    for (int j = 4; j < operands; ++j) {
      if (all[i * operands + j].bytes != alone[next++]) {
        return "state " + std::to_string(j - 4) + " of parameter " + std::to_string(i) + " differs";
      }
    }
  }
  return "";
}

std::string FaultIsReported(Backend& cuda) {
  HostTensor ids = Ints({3, 70, 1});
  const HostTensor weight = Random(DType::kF32, {64, 8}, 1);
  const auto run = [&] {
    std::vector<HostTensor> inputs = {ids, weight};
    std::vector<HostTensor> outputs = {HostTensor::Zeros(TensorSpec::Whole({DType::kF32, {3, 8}}))};
    return cuda.Run(SpecFor("embedding", {}, inputs, outputs[0].spec), {}, &inputs, &outputs);
  };
  const std::string error = run();
  if (error.find("70") == std::string::npos || error.find("63") == std::string::npos) {
    return "id 70 of 64 gave '" + error + "'";
  }
  SetValue(&ids, 1, 63);
  const std::string after = run();
  return after.empty() ? "" : "good ids after a fault gave '" + after + "'";
}

// Memory on the device for a plug-in test.
struct Memory {
  Memory(CudaPlugin* plugin, int device, const HostTensor& tensor)
      : plugin(plugin), device(device) {
    const int64_t bytes = static_cast<int64_t>(tensor.bytes.size());
    if (plugin->Allocate(device, bytes, &data).ok()) {
      error = plugin->CopyToDevice(device, data, tensor.bytes.data(), bytes).error;
    } else {
      error = "out of memory";
    }
  }
  ~Memory() { plugin->Free(device, data); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  CudaPlugin* plugin;
  int device;
  void* data = nullptr;
  std::string error;
};

std::string BoxIsCopied(CudaPlugin* plugin, int device, DType dtype, bool accumulate) {
  const HostTensor from = Random(dtype, {6, 7, 10}, 1);
  HostTensor to = Random(dtype, {8, 5, 9}, 2), expected = to;
  const Dims from_start = {1, 2, 4}, to_start = {3, 0, 1}, size = {4, 5, 6};
  for (int64_t i = 0; i < size[0]; ++i) {
    for (int64_t j = 0; j < size[1]; ++j) {
      for (int64_t k = 0; k < size[2]; ++k) {
        const int64_t a = ((from_start[0] + i) * 7 + from_start[1] + j) * 10 + from_start[2] + k;
        const int64_t b = ((to_start[0] + i) * 5 + to_start[1] + j) * 9 + to_start[2] + k;
        SetValue(&expected, b, ValueAt(from, a) + (accumulate ? ValueAt(to, b) : 0));
      }
    }
  }
  const Memory source(plugin, device, from), target(plugin, device, to);
  if (!source.error.empty() || !target.error.empty()) return source.error + target.error;
  if (std::string e =
          plugin
              ->CopyBoxOnDevice(device, {source.data, target.data, dtype, from.spec.dims,
                                         to.spec.dims, from_start, to_start, size, accumulate})
              .error;
      !e.empty()) {
    return e;
  }
  if (std::string e = plugin->Synchronize(device).error; !e.empty()) return e;
  if (std::string e = plugin
                          ->CopyToHost(device, to.bytes.data(), target.data,
                                       static_cast<int64_t>(to.bytes.size()))
                          .error;
      !e.empty()) {
    return e;
  }
  return to.bytes == expected.bytes ? "" : "the copied box differs";
}

std::string OneRankCollectives(CudaPlugin* plugin, int device) {
  std::string id, error;
  if (error = plugin->NewCommunicatorId(&id).error; !error.empty()) return error;
  const std::unique_ptr<CudaCommunicator> group =
      plugin->CreateCommunicator(device, id, 0, 1, &error);
  if (group == nullptr) return error;
  const HostTensor x = Random(DType::kF32, {1000}, 1);
  HostTensor y = HostTensor::Zeros(x.spec);
  const Memory in(plugin, device, x), out(plugin, device, y);
  const int64_t bytes = static_cast<int64_t>(x.bytes.size());
  const std::function<KernelStatus()> calls[] = {
      [&] { return group->AllReduceSum(DType::kF32, in.data, out.data, 1000); },
      [&] { return group->AllGather(in.data, out.data, bytes); },
      [&] { return group->ReduceScatterSum(DType::kF32, in.data, out.data, 1000); },
      [&] { return group->AllToAll(in.data, out.data, bytes); },
      [&] { return group->Broadcast(out.data, bytes); },
  };
  for (const auto& call : calls) {
    if (error = call().error; !error.empty()) return error;
    if (error = plugin->Synchronize(device).error; !error.empty()) return error;
    if (error = plugin->CopyToHost(device, y.bytes.data(), out.data, bytes).error; !error.empty()) {
      return error;
    }
    if (y.bytes != x.bytes) return "with one rank every collective is a copy, but the data differ";
  }
  return group->AsyncError().error;
}

}  // namespace

std::vector<Verdict> CheckProperties(CudaPlugin* plugin, int device, Backend& cuda) {
  std::vector<Verdict> verdicts;
  const auto add = [&](std::string label, std::string failure) {
    verdicts.push_back({std::move(label), std::move(failure), 0});
  };
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const std::string type = Name(dtype);
    add("row-stable linear " + type, LinearIsRowStable(cuda, dtype, 512, 200));
    add("row-stable linear " + type + ", odd sizes", LinearIsRowStable(cuda, dtype, 77, 33));
    for (int64_t rows : {1, 40, 300}) {
      add("row-stable linear " + type + " against cuBLAS, " + std::to_string(rows) + " rows",
          StableLinearIsRight(cuda, dtype, rows, 256, 130));
    }
    add("row-stable paged_attention " + type, AttentionIsRowStable(cuda, dtype));
    add("box copy " + type, BoxIsCopied(plugin, device, dtype, false));
    add("box copy, added " + type, BoxIsCopied(plugin, device, dtype, true));
  }
  const std::pair<const char*, int> updates[] = {{"sgd_update", 1},
                                                 {"adam_update", 2},
                                                 {"adagrad_update", 1},
                                                 {"lion_update", 1},
                                                 {"rmsprop_update", 3}};
  for (const auto& [op, states] : updates) {
    add(std::string(op) + " of five parameters at once",
        UpdatesTogetherAreUpdatesAlone(cuda, op, states));
  }
  add("fault of an embedding id", FaultIsReported(cuda));
  add("collectives of one rank", OneRankCollectives(plugin, device));
  return verdicts;
}

}  // namespace espalier::gpu_check
