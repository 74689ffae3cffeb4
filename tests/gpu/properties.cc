#include "tests/gpu/properties.h"

#include <cmath>
#include <cstring>
#include <functional>
#include <string>

#include "tests/gpu/property_inputs.h"

namespace espalier::gpu_check {
namespace {

// Checks that parameters updated by one kernel get the same bits as if updated one by one.
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

// Device memory for a test of the plug-in.
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

// Programmatic dependent launch: a norm whose weight the previous kernel writes (as in training of
// Gemma), behind a slow kernel of one block. A kernel that reads too early finds the old weight.
std::string MadeWeightIsAwaited(CudaPlugin* plugin, int device, Backend& cuda) {
  constexpr int64_t kSlow = int64_t{1} << 22, kRows = 64, kSize = 1000;
  const Attributes norm = {{"epsilon", 1e-6}};
  const HostTensor x = Random(DType::kF32, {kRows, kSize}, 1);
  const HostTensor given = Random(DType::kF32, {kSize}, 2);
  HostTensor made = given, y = HostTensor::Zeros(x.spec);
  for (int64_t i = 0; i < kSize; ++i) SetValue(&made, i, ValueAt(given, i) + 1);
  std::vector<HostTensor> inputs = {x, made}, alone = {y};
  const KernelSpec of_made = SpecFor("rms_norm", norm, inputs, y.spec);
  if (std::string e = cuda.Run(of_made, {}, &inputs, &alone); !e.empty()) return e;

  const HostTensor slow = Random(DType::kF32, {1, kSlow}, 3),
                   slow_weight = Random(DType::kF32, {kSlow}, 4);
  const Memory slow_x(plugin, device, slow), slow_w(plugin, device, slow_weight),
      slow_y(plugin, device, slow);
  const Memory w(plugin, device, given), x_in(plugin, device, x), y_out(plugin, device, y);
  const Memory made_w(plugin, device, HostTensor::Zeros(given.spec));
  for (const Memory* memory : {&slow_x, &slow_w, &slow_y, &w, &x_in, &y_out, &made_w}) {
    if (!memory->error.empty()) return memory->error;
  }
  const auto view = [](const Memory& memory, const HostTensor& like) {
    return TensorView{memory.data, like.spec};
  };
  struct Step {
    KernelSpec spec;
    std::vector<TensorView> in, out;
    std::unique_ptr<Kernel> kernel = nullptr;
  };
  Step steps[] = {{SpecFor("rms_norm", norm, {slow, slow_weight}, slow.spec),
                   {view(slow_x, slow), view(slow_w, slow_weight)},
                   {view(slow_y, slow)}},
                  {SpecFor("add_scalar", {{"value", 1.0}}, {given}, given.spec),
                   {view(w, given)},
                   {view(made_w, given)}},
                  {of_made, {view(x_in, x), view(made_w, given)}, {view(y_out, y)}}};
  std::string error = plugin->SetCurrent(device).error;
  for (Step& step : steps) {
    if (!error.empty()) return error;
    step.kernel = cuda.kernels().Create(step.spec, &error);
    if (step.kernel != nullptr && step.kernel->workspace_bytes() > 0)
      error = step.spec.op + " has a workspace";
  }
  for (Step& step : steps) {
    if (!error.empty()) return error;
    KernelArgs args;
    args.inputs = step.in;
    args.outputs = step.out;
    args.stream = plugin->Stream(device);
    error = step.kernel->Run(args).error;
  }
  if (error.empty()) error = plugin->Synchronize(device).error;
  if (error.empty()) {
    error =
        plugin->CopyToHost(device, y.bytes.data(), y_out.data, static_cast<int64_t>(y.bytes.size()))
            .error;
  }
  if (!error.empty()) return error;
  return y.bytes == alone[0].bytes ? "" : "the norm read its weight before that was made";
}

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
  const std::unique_ptr<CudaCommunicator> group = plugin->CreateCommunicator(
      device, id, 0, 1, [] { return true; }, &error);
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
  CheckServing(cuda, add);
  CheckAttention(cuda, add);
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const std::string type = Name(dtype);
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
  add("rms_norm by a weight that a kernel makes", MadeWeightIsAwaited(plugin, device, cuda));
  add("fault of an embedding id", FaultIsReported(cuda));
  add("collectives of one rank", OneRankCollectives(plugin, device));
  return verdicts;
}

}  // namespace espalier::gpu_check
