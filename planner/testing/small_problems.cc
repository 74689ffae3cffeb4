#include "planner/testing/small_problems.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "planner/search/search_space.h"
#include "planner/testing/graphs.h"

namespace espalier {
namespace {

using Ints = std::vector<int64_t>;

constexpr Initializer kInit{Initializer::kNormal, 0.1};

// A graph that grows until its operators are used up; later calls add nothing. Dims are without the
// batch.
class Net {
 public:
  struct Tensor {
    ValueId value = kNoValue;
    Dims dims;
  };

  Net(std::string name, int operators) : b_(TestRegistry(), std::move(name)), left_(operators) {}

  bool done() const { return left_ <= 0; }

  Tensor Input(const std::string& name, Dims dims, DType dtype = DType::kF32) {
    Dims whole = dims;
    whole.insert(whole.begin(), -1);
    return {b_.Input(name, dtype, whole), std::move(dims)};
  }

  Tensor Unary(const std::string& op, const Tensor& x, Attributes attributes = {}) {
    return Add(op, {x.value}, std::move(attributes), x, x.dims);
  }
  Tensor Binary(const std::string& op, const Tensor& x, const Tensor& y) {
    return Add(op, {x.value, y.value}, {}, x, x.dims);
  }
  Tensor Linear(const Tensor& x, int64_t out) {
    Dims dims = x.dims;
    dims.back() = out;
    if (done()) return x;
    return Add("linear", {x.value, Weight({out, x.dims.back()})}, {}, x, std::move(dims));
  }
  Tensor Norm(const std::string& op, const Tensor& x) {
    if (done()) return x;
    return Add(op, {x.value, Weight({x.dims.back()})}, {}, x, x.dims);
  }
  Tensor Embedding(const Tensor& ids, int64_t rows, int64_t width) {
    if (done()) return ids;
    Dims dims = ids.dims;
    dims.push_back(width);
    return Add("embedding", {ids.value, Weight({rows, width})}, {}, ids, std::move(dims));
  }
  Tensor Conv(const Tensor& x, int64_t out, int64_t kernel, int64_t stride) {
    if (done()) return x;
    const int64_t pad = kernel / 2;
    return Add(
        "conv2d", {x.value, Weight({out, x.dims[0], kernel, kernel})},
        {{"strides", Ints{stride, stride}}, {"pads", Ints(4, pad)}}, x,
        {out, Windows(x.dims[1], kernel, stride, pad), Windows(x.dims[2], kernel, stride, pad)});
  }
  Tensor Pool(const Tensor& x, int64_t kernel, int64_t stride, int64_t pad) {
    return Add("pool2d", {x.value},
               {{"kind", "max"},
                {"kernel", Ints{kernel, kernel}},
                {"strides", Ints{stride, stride}},
                {"pads", Ints(4, pad)}},
               x,
               {x.dims[0], Windows(x.dims[1], kernel, stride, pad),
                Windows(x.dims[2], kernel, stride, pad)});
  }
  Tensor BatchNorm(const Tensor& x) {
    const Tensor stats = Add("batch_norm_stats", {x.value}, {}, x, {});
    if (done()) return x;
    const Dims c = {x.dims[0]};
    return Add("batch_norm",
               {x.value, Weight(c), Weight(c), Weight(c, false), Weight(c, false), stats.value}, {},
               x, x.dims);
  }
  Tensor Flatten(const Tensor& x) {
    int64_t all = 1;
    for (int64_t d : x.dims) all *= d;
    return Add("flatten", {x.value}, {{"axis", int64_t{1}}}, x, {all});
  }
  Tensor Concat(const std::vector<Tensor>& parts) {
    std::vector<ValueId> values;
    Dims dims = parts[0].dims;
    dims[0] = 0;
    for (const Tensor& part : parts) {
      values.push_back(part.value);
      dims[0] += part.dims[0];
    }
    return Add("concat", values, {{"axis", int64_t{1}}}, parts[0], dims);
  }

  Graph Finish(const Tensor& x, int64_t batch) {
    const Tensor target = Input("target", x.dims);
    b_.Output("loss", b_.Op("mean_squared_error", {x.value, target.value}, {}, "loss"));
    return Bound(b_.Build(), batch);
  }

  ValueId Weight(Dims dims, bool trainable = true) {
    return b_.Parameter(absl::StrCat("w", weights_++), DType::kF32, std::move(dims), kInit,
                        trainable);
  }
  Tensor Add(const std::string& op, const std::vector<ValueId>& inputs, Attributes attributes,
             const Tensor& instead, Dims dims) {
    if (done()) return instead;
    --left_;
    return {b_.Op(op, inputs, std::move(attributes)), std::move(dims)};
  }

 private:
  static int64_t Windows(int64_t extent, int64_t kernel, int64_t stride, int64_t pad) {
    return (extent + 2 * pad - kernel) / stride + 1;
  }

  GraphBuilder b_;
  int left_;
  int weights_ = 0;
};

using Tensor = Net::Tensor;

int64_t OneOf(const Ints& choices, Random* random) {
  return choices[random->Below(static_cast<int64_t>(choices.size()))];
}

// Log-uniform between `low` and `high`.
double Spread(double low, double high, Random* random) {
  return low * std::pow(high / low, random->Real());
}

int64_t Width(Random* random) {
  return OneOf({16, 48, 64, 96, 128, 256, 512, 768, 1024, 2048}, random);
}

Tensor RandomOperator(Net* net, const Tensor& x, Random* random) {
  switch (random->Below(6)) {
    case 0:
      return net->Unary("relu", x);
    case 1:
      return net->Unary("gelu", x);
    case 2:
      return net->Norm("layer_norm", x);
    default:
      return net->Linear(x, Width(random));
  }
}

// A residual block of two operators.
Tensor Residual(Net* net, const Tensor& x, Random* random) {
  const Tensor h = RandomOperator(net, x, random);
  const Tensor y = net->Linear(h, x.dims.back());
  return net->done() ? y : net->Binary("add", x, y);
}

Tensor Branches(Net* net, const Tensor& x, Random* random) {
  const int64_t width = Width(random);
  const Tensor left = net->Linear(x, width);
  if (net->done()) return left;
  Tensor right = net->Linear(x, width);
  if (random->Real() < 0.5) right = net->Unary("relu", right);
  // Without the join one of them would be dead.
  if (net->done()) return left;
  return net->Binary(random->Real() < 0.5 ? "add" : "multiply", left, right);
}

Tensor RandomBeginning(Net* net, Random* random) {
  switch (random->Below(4)) {
    case 0: {
      const int64_t sequence = OneOf({8, 32, 128}, random);
      const Tensor ids = net->Input("ids", {sequence}, DType::kI32);
      return net->Embedding(ids, OneOf({100, 1000, 30000}, random), Width(random));
    }
    case 1: {
      const int64_t extent = OneOf({8, 16, 32}, random);
      const Tensor x = net->Input("x", {OneOf({1, 3, 16}, random), extent, extent});
      const Tensor h = net->Conv(x, OneOf({8, 32, 128}, random), OneOf({1, 3, 5}, random), 1);
      return net->Flatten(random->Real() < 0.5 ? net->Pool(h, 2, 2, 0) : h);
    }
    default:
      return net->Input("x", {Width(random)});
  }
}

Tensor AlexNet(Net* net) {
  Tensor h = net->Conv(net->Input("x", {3, 224, 224}), 64, 11, 4);
  h = net->Pool(net->Unary("relu", h), 3, 2, 0);
  h = net->Conv(h, 192, 5, 1);
  return net->Pool(net->Unary("relu", h), 3, 2, 0);
}

Tensor ResNet50(Net* net) {
  Tensor h = net->BatchNorm(net->Conv(net->Input("x", {3, 224, 224}), 64, 7, 2));
  h = net->Pool(net->Unary("relu", h), 3, 2, 1);
  return net->Conv(h, 64, 1, 1);
}

Tensor InceptionV3(Net* net) {
  const Tensor x = net->Input("x", {192, 35, 35});
  const Tensor a = net->Conv(x, 64, 1, 1);
  Tensor b = net->Conv(x, 48, 1, 1);
  b = net->Conv(b, 64, 5, 1);
  return net->done() ? b : net->Concat({a, b});
}

Tensor Dlrm(Net* net) {
  const Tensor dense = net->Unary("relu", net->Linear(net->Input("dense", {13}), 64));
  if (net->done()) return dense;
  const Tensor ids = net->Input("ids", {}, DType::kI32);
  const Tensor e = net->Embedding(ids, 1000000, 64);
  if (net->done()) return e;
  return net->Linear(net->Concat({dense, e}), 512);
}

Tensor LlamaMlp(Net* net) {
  const Tensor x = net->Norm("rms_norm", net->Input("x", {128, 1024}));
  const Tensor up = net->Linear(x, 2816);
  if (net->done()) return up;
  const Tensor gate = net->Unary("silu", net->Linear(x, 2816));
  if (net->done()) return up;
  return net->Linear(net->Binary("multiply", gate, up), 1024);
}

Tensor BertAttention(Net* net) {
  const Tensor x = net->Input("x", {128, 768});
  const Tensor q = net->Linear(x, 768), k = net->Linear(x, 768), v = net->Linear(x, 768);
  const Tensor a =
      net->Add("attention", {q.value, k.value, v.value}, {{"head_dim", int64_t{64}}}, q, q.dims);
  return net->Linear(a, 768);
}

Tensor BertMlp(Net* net) {
  const Tensor x = net->Norm("layer_norm", net->Input("x", {128, 1024}));
  const Tensor h = net->Linear(net->Unary("gelu", net->Linear(x, 4096)), 1024);
  return net->done() ? h : net->Binary("add", x, h);
}

struct Model {
  const char* name;
  Tensor (*make)(Net*);
  int64_t batch;
};
constexpr Model kModels[] = {
    {"alexnet", AlexNet, 64}, {"resnet50", ResNet50, 64}, {"inception_v3", InceptionV3, 64},
    {"dlrm", Dlrm, 2048},     {"llama_mlp", LlamaMlp, 8}, {"bert_attention", BertAttention, 16},
    {"bert_mlp", BertMlp, 16}};

}  // namespace

PlanProblem SmallProblem::Problem() const {
  PlanProblem problem = TestProblem(graph, batch, 1);
  problem.machine = machine;
  return problem;
}

SmallProblem RandomProblem(uint64_t seed, int devices, int operators) {
  Random random(seed);
  SmallProblem problem;
  problem.batch = OneOf({4, 12, 32, 128, 512, 2048}, &random);
  problem.machine = TestMachine(devices);
  problem.machine.link.set_bandwidth(Spread(1e8, 1e11, &random));
  problem.machine.link.set_latency_seconds(Spread(1e-6, 1e-4, &random));
  const double slowest = random.Real() < 0.25 ? 0.3 : 1.0;
  for (v1::Device& device : problem.machine.devices) {
    const double rate = Spread(slowest, 1.0, &random);
    device.set_matmul_flops(rate * device.matmul_flops());
    device.set_memory_bandwidth(rate * device.memory_bandwidth());
    device.set_memory_bytes(int64_t{1} << 42);
  }
  Net net(absl::StrCat("random", seed), operators);
  Tensor h = RandomBeginning(&net, &random);
  while (!net.done()) {
    switch (random.Below(4)) {
      case 0:
        h = Residual(&net, h, &random);
        break;
      case 1:
        h = Branches(&net, h, &random);
        break;
      default:
        h = RandomOperator(&net, h, &random);
    }
  }
  problem.graph = net.Finish(h, problem.batch);
  problem.name = problem.graph.name;
  return problem;
}

SmallProblem ActivationHeavyProblem(uint64_t seed, int operators) {
  Random random(seed);
  SmallProblem problem;
  // An odd batch cannot be split, so operators run whole on one device.
  problem.batch = OneOf({63, 127, 255, 256, 511}, &random);
  problem.machine = TestMachine(2);
  problem.machine.link.set_bandwidth(Spread(1e9, 1e11, &random));
  problem.machine.link.set_latency_seconds(Spread(1e-6, 2e-5, &random));
  Net net(absl::StrCat("tall", seed), operators);
  const int64_t width = OneOf({128, 256, 512}, &random);
  Tensor h = net.Embedding(net.Input("ids", {16}, DType::kI32), 100, width);
  Tensor before = h;
  while (!net.done()) {
    const Tensor now = h;
    switch (random.Below(8)) {
      case 0:
        // To a narrow layer and back.
        h = net.Linear(net.Linear(h, 16), width);
        break;
      case 1:
        if (before.dims == h.dims) h = net.Binary("add", before, h);
        break;
      case 2:
      case 3:
        h = net.Norm("layer_norm", h);
        break;
      default:
        h = net.Unary(random.Real() < 0.5 ? "gelu" : "silu", h);
    }
    before = now;
  }
  problem.graph = net.Finish(h, problem.batch);
  problem.name = problem.graph.name;
  return problem;
}

std::vector<std::string> ModelsWithFirstLayers() {
  std::vector<std::string> names;
  for (const Model& model : kModels) names.push_back(model.name);
  return names;
}

SmallProblem FirstLayers(const std::string& model, const v1::Link& link, int devices,
                         int operators) {
  SmallProblem problem;
  problem.name = model;
  problem.machine = TestMachine(devices, int64_t{1} << 42);
  problem.machine.link = link;
  for (const Model& m : kModels) {
    if (m.name != model) continue;
    Net net(model, operators);
    problem.batch = m.batch;
    const Tensor h = m.make(&net);
    problem.graph = net.Finish(h, m.batch);
  }
  return problem;
}

}  // namespace espalier
