// Runs the routing of the mixture at a small size: a plan is meaningless if tokens do not return to
// their places.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ops/onnx/cpu_evaluator.h"
#include "planner/testing/graphs.h"
#include "planner/testing/zoo/models.h"

namespace espalier {
namespace {

constexpr int64_t kBatch = 3, kSequence = 8, kHidden = 4, kVocabulary = 16;

using Floats = std::vector<float>;

std::string Bytes(const Floats& numbers) {
  return std::string(reinterpret_cast<const char*>(numbers.data()), 4 * numbers.size());
}

// Runs a graph on the CPU with random parameters, except those that are set.
class SmallMoe {
 public:
  explicit SmallMoe(int64_t experts)
      : graph_(Bound(zoo::BuildMoe(TestRegistry(), "moe",
                                   {.body = {.layers = 2,
                                             .hidden = kHidden,
                                             .heads = 2,
                                             .sequence = kSequence,
                                             .vocabulary = kVocabulary},
                                    .experts = experts}),
                     kBatch)),
        bytes_(graph_.values().size()) {
    std::mt19937 random(7);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (size_t v = 0; v < bytes_.size(); ++v) {
      const Value& value = graph_.value(static_cast<ValueId>(v));
      if (value.kind == ValueKind::kComputed) continue;
      if (value.type.dtype == DType::kI64) {
        std::vector<int64_t> ids(value.type.num_elements());
        for (int64_t& id : ids) id = static_cast<int64_t>(random() % kVocabulary);
        bytes_[v].assign(reinterpret_cast<const char*>(ids.data()), 8 * ids.size());
      } else {
        Floats numbers(value.type.num_elements());
        for (float& number : numbers) number = uniform(random);
        bytes_[v] = Bytes(numbers);
      }
    }
  }

  Floats Get(const std::string& name) const {
    const std::string& bytes = bytes_[graph_.FindValue(name)];
    Floats numbers(bytes.size() / 4);
    std::memcpy(numbers.data(), bytes.data(), bytes.size());
    return numbers;
  }
  void Set(const std::string& name, const Floats& numbers) {
    bytes_[graph_.FindValue(name)] = Bytes(numbers);
  }

  void Forward() {
    for (NodeId n = 0; n < static_cast<NodeId>(graph_.nodes().size()); ++n) {
      const Node& node = graph_.node(n);
      std::vector<const std::string*> inputs;
      for (ValueId v : node.inputs) inputs.push_back(&bytes_[v]);
      absl::StatusOr<std::vector<std::string>> results =
          Evaluate(node.op, graph_.TypesOf(n), inputs);
      for (size_t k = 0; k < node.outputs.size(); ++k) {
        bytes_[node.outputs[k]] = (*results)[k];
      }
    }
  }

  // Of x [rows, in] and weight [in, out].
  static Floats Product(const Floats& x, const Floats& weight, int64_t in, int64_t out) {
    const int64_t rows = static_cast<int64_t>(x.size()) / in;
    const std::string a = Bytes(x), b = Bytes(weight);
    return One("matmul", {{DType::kF32, {rows, in}}, {DType::kF32, {in, out}}}, {&a, &b});
  }
  static Floats Gelu(const Floats& x) {
    const std::string a = Bytes(x);
    return One("gelu", {{DType::kF32, {static_cast<int64_t>(x.size())}}}, {&a});
  }

 private:
  static absl::StatusOr<std::vector<std::string>> Evaluate(
      const std::string& op, const NodeTypes& types, const std::vector<const std::string*>& in) {
    absl::StatusOr<std::vector<std::string>> results = CpuEvaluator()(op, types, in);
    if (!results.ok()) {
      ADD_FAILURE() << op << ": " << results.status();
      std::abort();
    }
    return results;
  }
  static Floats One(const std::string& op, std::vector<TensorType> inputs,
                    const std::vector<const std::string*>& bytes) {
    NodeTypes types{{}, std::move(inputs), {}};
    EXPECT_TRUE(InferNode(*TestRegistry().Find(op), &types).ok());
    const std::string result = (*Evaluate(op, types, bytes))[0];
    Floats numbers(result.size() / 4);
    std::memcpy(numbers.data(), result.data(), result.size());
    return numbers;
  }

  Graph graph_;
  std::vector<std::string> bytes_;
};

TEST(Mixture, OfEqualExpertsIsOneFeedForwardLayer) {
  SmallMoe run(/*experts=*/2);  // every token chooses both: no choice is dropped
  for (const char* name : {"layers.1.ffn.experts.up.weight", "layers.1.ffn.experts.down.weight"}) {
    Floats both = run.Get(name);
    std::copy_n(both.begin(), both.size() / 2, both.begin() + both.size() / 2);
    run.Set(name, both);
  }
  run.Forward();
  Floats up = run.Get("layers.1.ffn.experts.up.weight");
  Floats down = run.Get("layers.1.ffn.experts.down.weight");
  up.resize(up.size() / 2);
  down.resize(down.size() / 2);
  const Floats inner =
      SmallMoe::Gelu(SmallMoe::Product(run.Get("layers.1.ffn.norm"), up, kHidden, 8 * kHidden));
  const Floats expected = SmallMoe::Product(inner, down, 8 * kHidden, kHidden);
  const Floats found = run.Get("layers.1.ffn.combine");
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-5) << i;
}

TEST(Mixture, DropsTokensOfFullExperts) {
  SmallMoe run(/*experts=*/4);
  Floats router = run.Get("layers.1.ffn.router.weight");
  std::fill(router.begin(), router.end(), 0.0f);  // all tokens choose experts 0 and 1
  run.Set("layers.1.ffn.router.weight", router);
  run.Forward();
  const Floats found = run.Get("layers.1.ffn.combine");
  // Each has capacity for half a sequence: its even share of two choices per token.
  for (int64_t b = 0; b < kBatch; ++b) {
    for (int64_t s = 0; s < kSequence; ++s) {
      bool any = false;
      for (int64_t c = 0; c < kHidden; ++c) any |= found[(b * kSequence + s) * kHidden + c] != 0;
      EXPECT_EQ(any, s < kSequence / 2) << "sequence " << b << ", token " << s;
    }
  }
}

// E * (sum of share * probability) is 1 for even routing, and E if every token is certain of one
// expert; the loss weights it by E * 0.01.
TEST(Mixture, BalanceLossIsLargestForOneExpert) {
  SmallMoe even(/*experts=*/4), uneven(/*experts=*/4);
  Floats router(4 * kHidden, 0.0f);
  even.Set("layers.1.ffn.router.weight", router);
  even.Forward();
  for (float balance : even.Get("balance.scaled")) EXPECT_NEAR(balance, 0.01, 1e-6);
  // A norm that scales by 0 and adds 1 makes all tokens equal.
  uneven.Set("layers.1.ffn.norm.weight", Floats(kHidden, 0.0f));
  uneven.Set("layers.1.ffn.norm.bias", Floats(kHidden, 1.0f));
  std::fill(router.begin(), router.begin() + kHidden, 100.0f);
  uneven.Set("layers.1.ffn.router.weight", router);
  uneven.Forward();
  for (float balance : uneven.Get("balance.scaled")) EXPECT_NEAR(balance, 0.04, 1e-6);
}

}  // namespace
}  // namespace espalier
