// Inception-v3 without the auxiliary head; blocks are named as in torchvision.
#include <cstdint>
#include <utility>
#include <vector>

#include "planner/testing/zoo/layers.h"
#include "planner/testing/zoo/models.h"

namespace espalier::zoo {
namespace {

// A convolution of one branch, with batch norm and ReLU.
struct Step {
  int64_t out;
  Window window;
};

const Window k1x1 = {{1, 1}};
const Window k3x3 = {{3, 3}, 1, {1, 1}};
const Window k5x5 = {{5, 5}, 1, {2, 2}};
const Window k1x7 = {{1, 7}, 1, {0, 3}};
const Window k7x1 = {{7, 1}, 1, {3, 0}};
const Window k1x3 = {{1, 3}, 1, {0, 1}};
const Window k3x1 = {{3, 1}, 1, {1, 0}};
const Window kHalve = {{3, 3}, 2};  // halves both dimensions

class Block {
 public:
  Block(Layers* layers, std::string name, Features x)
      : l_(*layers), name_(std::move(name)), x_(x) {}

  // Consecutive convolutions from the block's input, or from `from` if given.
  Features Branch(const std::string& branch, const std::vector<Step>& steps, Features from = {}) {
    Features y = from.value == kNoValue ? x_ : from;
    int i = 0;
    for (const Step& step : steps) {
      const std::string name = name_ + "." + branch + "_" + std::to_string(++i);
      y = l_.Conv(name + ".conv", y, step.out, step.window);
      y = l_.BatchNorm(name + ".bn", y, {.epsilon = 1e-3});
    }
    return y;
  }
  Features Pooled(int64_t out) {
    return Branch("branch_pool", {{out, k1x1}}, l_.Pool2d(name_ + ".pool", x_, "average", k3x3));
  }
  Features Halved() { return l_.Pool2d(name_ + ".pool", x_, "max", kHalve); }
  // Some branches end in two parallel convolutions.
  std::vector<Features> Fork(const std::string& branch, Features from, int64_t out) {
    return {Branch(branch + "a", {{out, k1x3}}, from), Branch(branch + "b", {{out, k3x1}}, from)};
  }
  Features Join(const std::vector<Features>& parts) { return l_.Concat(name_ + ".concat", parts); }

 private:
  Layers& l_;
  const std::string name_;
  const Features x_;
};

Features Squares(Layers& l, const std::string& name, Features x, int64_t pooled) {
  Block b(&l, name, x);
  return b.Join({b.Branch("branch1x1", {{64, k1x1}}),
                 b.Branch("branch5x5", {{48, k1x1}, {64, k5x5}}),
                 b.Branch("branch3x3dbl", {{64, k1x1}, {96, k3x3}, {96, k3x3}}), b.Pooled(pooled)});
}

Features FirstHalving(Layers& l, const std::string& name, Features x) {
  Block b(&l, name, x);
  return b.Join({b.Branch("branch3x3", {{384, kHalve}}),
                 b.Branch("branch3x3dbl", {{64, k1x1}, {96, k3x3}, {96, kHalve}}), b.Halved()});
}

Features Factored(Layers& l, const std::string& name, Features x, int64_t inner) {
  Block b(&l, name, x);
  return b.Join(
      {b.Branch("branch1x1", {{192, k1x1}}),
       b.Branch("branch7x7", {{inner, k1x1}, {inner, k1x7}, {192, k7x1}}),
       b.Branch("branch7x7dbl",
                {{inner, k1x1}, {inner, k7x1}, {inner, k1x7}, {inner, k7x1}, {192, k1x7}}),
       b.Pooled(192)});
}

Features SecondHalving(Layers& l, const std::string& name, Features x) {
  Block b(&l, name, x);
  return b.Join({b.Branch("branch3x3", {{192, k1x1}, {320, kHalve}}),
                 b.Branch("branch7x7x3", {{192, k1x1}, {192, k1x7}, {192, k7x1}, {192, kHalve}}),
                 b.Halved()});
}

Features Widening(Layers& l, const std::string& name, Features x) {
  Block b(&l, name, x);
  std::vector<Features> parts = {b.Branch("branch1x1", {{320, k1x1}})};
  for (const auto& [branch, steps] :
       {std::pair<std::string, std::vector<Step>>{"branch3x3", {{384, k1x1}}},
        {"branch3x3dbl", {{448, k1x1}, {384, k3x3}}}}) {
    for (Features part : b.Fork(branch, b.Branch(branch, steps), 384)) parts.push_back(part);
  }
  parts.push_back(b.Pooled(192));
  return b.Join(parts);
}

}  // namespace

absl::StatusOr<Graph> BuildInceptionV3(const OpRegistry& registry) {
  Layers l(registry, "inception_v3");
  Features x = {l.builder().Input("image", DType::kF32, {-1, 3, 299, 299}), 3};
  x = Block(&l, "stem1", x).Branch("conv3x3", {{32, kHalve}, {32, {{3, 3}}}, {64, k3x3}});
  x = l.Pool2d("maxpool1", x, "max", kHalve);
  x = Block(&l, "stem2", x).Branch("conv3x3", {{80, k1x1}, {192, {{3, 3}}}});
  x = l.Pool2d("maxpool2", x, "max", kHalve);
  x = Squares(l, "Mixed_5b", x, 32);
  x = Squares(l, "Mixed_5c", x, 64);
  x = Squares(l, "Mixed_5d", x, 64);
  x = FirstHalving(l, "Mixed_6a", x);
  x = Factored(l, "Mixed_6b", x, 128);
  x = Factored(l, "Mixed_6c", x, 160);
  x = Factored(l, "Mixed_6d", x, 160);
  x = Factored(l, "Mixed_6e", x, 192);
  x = SecondHalving(l, "Mixed_7a", x);
  x = Widening(l, "Mixed_7b", x);
  x = Widening(l, "Mixed_7c", x);
  x = l.GlobalAverage("avgpool", x);
  x.value = l.builder().Op("dropout", {x.value}, {{"rate", 0.5}}, "dropout");
  return l.Classify(l.Linear("fc", x, 1000));
}

}  // namespace espalier::zoo
