// A decoder with a mixture of experts in every second layer, routed as in GShard: two experts per
// token, chosen within groups of one sequence, with capacity for an even share of the choices. As
// in GShard, routing is written as products over a [sequence, experts * capacity] tensor, so that
// every operator has axes to split: tokens are split by batch, experts by device, and resharding
// the transpose between them is the all-to-all. (group_by and aggregate have no expert axis and
// need the choices of the whole batch on every device.)
#include <cstdint>
#include <string>
#include <vector>

#include "planner/testing/zoo/layers.h"
#include "planner/testing/zoo/models.h"
#include "planner/testing/zoo/transformer.h"

namespace espalier::zoo {
namespace {

using Ints = std::vector<int64_t>;

constexpr int64_t kChoices = 2;
// weight of the balance loss, relative to the number of experts squared
constexpr double kBalance = 0.01;

class Mixture {
 public:
  Mixture(Layers* layers, const MoeSizes& sizes)
      : l_(*layers),
        b_(layers->builder()),
        sequence_(sizes.body.sequence),
        hidden_(sizes.body.hidden),
        experts_(sizes.experts),
        capacity_((kChoices * sequence_ + experts_ - 1) / experts_) {}

  // x [batch, sequence, hidden], like the result.
  Features Layer(const std::string& name, Features x) {
    const ValueId probabilities =
        b_.Op("softmax", {l_.Linear(name + ".router", x, experts_, Bias::kNone).value}, {},
              name + ".router.softmax");
    const std::vector<ValueId> top =
        b_.OpN("top_k", 2, {probabilities}, {{"k", kChoices}}, name + ".router.choices");
    const ValueId chosen = Chosen(name + ".router", top[1]);
    AddBalance(name + ".balance", probabilities, chosen);
    const ValueId slots = Slots(name + ".router", chosen);
    const ValueId dispatch =
        b_.Op("reduce_sum", {slots}, {{"axes", Ints{1}}}, name + ".router.dispatch");
    const ValueId combine = Combine(name + ".router", slots, top[0]);
    const ValueId sent = b_.Op("matmul", {dispatch, x.value}, {{"transpose_a", true}},
                               name + ".dispatch");  // [batch, experts * capacity, hidden]
    return {b_.Op("matmul", {combine, Experts(name + ".experts", sent)}, {}, name + ".combine"),
            hidden_};
  }

  // [batch]: the imbalance of each sequence's routing, over all layers.
  ValueId Balance() {
    return b_.Op("multiply_scalar", {b_.Op("add_n", balance_, {}, "balance.sum")},
                 {{"value", kBalance * static_cast<double>(experts_ * experts_)}},
                 "balance.scaled");
  }

 private:
  // [batch, choices * sequence, experts]: 1 where a choice fell on an expert. First choices precede
  // second ones, so that second choices are dropped first.
  ValueId Chosen(const std::string& name, ValueId places) {
    places = b_.Op("transpose", {places}, {{"perm", Ints{0, 2, 1}}}, name + ".by_choice");
    places = b_.Op("reshape", {places}, {{"shape", Ints{0, kChoices * sequence_}}}, name + ".line");
    return b_.Op("one_hot", {places}, {{"depth", experts_}}, name + ".chosen");
  }

  // [batch, choices, sequence, experts * capacity]: 1 where a choice takes an expert's slot; all 0
  // for a choice whose expert is full.
  ValueId Slots(const std::string& name, ValueId chosen) {
    ValueId before =
        b_.Op("cumsum", {chosen}, {{"axis", int64_t{1}}, {"exclusive", true}}, name + ".before");
    before = b_.Op("multiply", {before, chosen}, {}, name + ".before.chosen");
    before = b_.Op("reduce_sum", {before}, {{"axes", Ints{2}}}, name + ".place");
    before = b_.Op("cast", {before}, {{"to", "i32"}}, name + ".place.integer");
    const ValueId place =
        b_.Op("one_hot", {before}, {{"depth", capacity_}}, name + ".place.one_hot");
    const ValueId slots =
        b_.Op("multiply",
              {b_.Op("unsqueeze", {chosen}, {{"axes", Ints{3}}}, name + ".chosen.column"),
               b_.Op("unsqueeze", {place}, {{"axes", Ints{2}}}, name + ".place.row")},
              {}, name + ".slots");
    return b_.Op("reshape", {slots},
                 {{"shape", Ints{0, kChoices, sequence_, experts_ * capacity_}}},
                 name + ".slots.by_choice");
  }

  // [batch, sequence, experts * capacity]: the weight of each slot's result for a token.
  ValueId Combine(const std::string& name, ValueId slots, ValueId gates) {
    const ValueId total = b_.Op("reduce_sum", {gates}, {{"axes", Ints{2}}, {"keepdims", true}},
                                name + ".gates.total");
    gates = b_.Op("divide", {gates, total}, {}, name + ".gates");
    gates = b_.Op("transpose", {gates}, {{"perm", Ints{0, 2, 1}}}, name + ".gates.by_choice");
    gates = b_.Op("unsqueeze", {gates}, {{"axes", Ints{3}}}, name + ".gates.column");
    const ValueId weighted = b_.Op("multiply", {slots, gates}, {}, name + ".weighted");
    return b_.Op("reduce_sum", {weighted}, {{"axes", Ints{1}}}, name + ".combine");
  }

  // [batch, experts * capacity, hidden] -> the same: each expert's rows through its two layers.
  ValueId Experts(const std::string& name, ValueId sent) {
    const int64_t inner = 8 * hidden_;
    ValueId x = b_.Op("reshape", {sent}, {{"shape", Ints{0, experts_, capacity_, hidden_}}},
                      name + ".by_expert");
    x = b_.Op("transpose", {x}, {{"perm", Ints{1, 0, 2, 3}}}, name + ".to_experts");
    x = b_.Op("reshape", {x}, {{"shape", Ints{experts_, -1, hidden_}}}, name + ".rows");
    x = b_.Op("batch_matmul", {x, l_.Weight(name + ".up.weight", {experts_, hidden_, inner})}, {},
              name + ".up");
    x = b_.Op("gelu", {x}, {}, name + ".gelu");
    x = b_.Op("batch_matmul", {x, l_.Weight(name + ".down.weight", {experts_, inner, hidden_})}, {},
              name + ".down");
    x = b_.Op("reshape", {x}, {{"shape", Ints{experts_, -1, capacity_, hidden_}}},
              name + ".by_group");
    x = b_.Op("transpose", {x}, {{"perm", Ints{1, 0, 2, 3}}}, name + ".from_experts");
    return b_.Op("reshape", {x}, {{"shape", Ints{0, experts_ * capacity_, hidden_}}},
                 name + ".slots");
  }

  // GShard's balance loss: the mean over experts of (share of first choices * mean probability),
  // per sequence.
  void AddBalance(const std::string& name, ValueId probabilities, ValueId chosen) {
    const ValueId first =
        b_.Op("slice", {chosen},
              {{"axes", Ints{1}}, {"starts", Ints{0}}, {"ends", Ints{sequence_}}}, name + ".first");
    const auto mean = [&](const char* what, ValueId value) {
      return b_.Op("reduce_mean", {value}, {{"axes", Ints{1}}}, name + what);
    };
    const ValueId both =
        b_.Op("multiply", {mean(".share", first), mean(".probability", probabilities)}, {},
              name + ".product");
    balance_.push_back(mean(".mean", both));
  }

  Layers& l_;
  GraphBuilder& b_;
  const int64_t sequence_, hidden_, experts_;
  const int64_t capacity_;  // capacity of an expert in each group
  std::vector<ValueId> balance_;
};

}  // namespace

absl::StatusOr<Graph> BuildMoe(const OpRegistry& registry, const std::string& name,
                               const MoeSizes& sizes) {
  Layers l(registry, name);
  GraphBuilder& b = l.builder();
  Mixture mixture(&l, sizes);
  const Features logits = Decode(l, sizes.body, [&](int i, const std::string& prefix, Features x) {
    return i % 2 == 1 ? mixture.Layer(prefix, x) : FeedForward(l, prefix, x, 8 * sizes.body.hidden);
  });
  // The losses are added per sequence, before the mean, so that the batch can run in micro-batches.
  const ValueId labels = b.Input("labels", DType::kI64, {-1, sizes.body.sequence});
  const ValueId tokens = b.Op("sparse_categorical_crossentropy", {logits.value, labels},
                              {{"reduction", "none"}}, "loss.tokens");
  const ValueId sequences = b.Op("reduce_mean", {tokens}, {{"axes", Ints{1}}}, "loss.sequences");
  const ValueId sum = b.Op("add", {sequences, mixture.Balance()}, {}, "loss.sum");
  b.Output("loss", b.Op("identity_loss", {sum}, {}, "loss"));
  return b.Build();
}

}  // namespace espalier::zoo
