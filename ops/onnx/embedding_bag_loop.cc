#include "ops/onnx/embedding_bag_loop.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/onnx/tensor_proto.h"

namespace espalier::onnx_import {
namespace {

constexpr int64_t kMaxBagCells = 1 << 24;  // of the table of positions by bag and place

const onnx::AttributeProto* AttributeOf(const onnx::NodeProto& node, const std::string& name) {
  for (const onnx::AttributeProto& attribute : node.attribute()) {
    if (attribute.name() == name) return &attribute;
  }
  return nullptr;
}

std::string InputOf(const onnx::NodeProto& node, int index) {
  return index < node.input_size() ? node.input(index) : "";
}

// Values of the enclosing graph that the loop reads, by name.
struct BagLoop {
  std::string table, ids, starts, ends;
  std::string weights;    // of each id; empty: none
  std::string reduction;  // operator of the graph
};

// Reads the body backwards from its result.
class BagLoopMatch {
 public:
  BagLoopMatch(Translator& t, const onnx::GraphProto& body) : t_(t), body_(body) {
    for (const onnx::NodeProto& node : body.node()) {
      for (const std::string& output : node.output()) producers_[output] = &node;
    }
  }

  std::optional<BagLoop> Match() {
    if (body_.input_size() != 2 || body_.output_size() != 2) return std::nullopt;
    BagLoop loop;
    if (!StaysTrue(body_.output(0).name()) || !Reduces(body_.output(1).name(), &loop)) {
      return std::nullopt;
    }
    return loop;
  }

 private:
  // The node that computes `name` in the body if it is one of `op`; null otherwise.
  const onnx::NodeProto* Producer(const std::string& name, const std::string& op) const {
    const auto found = producers_.find(name);
    const bool right = found != producers_.end() && found->second->op_type() == op &&
                       found->second->domain().empty();
    return right ? found->second : nullptr;
  }

  // A value of the enclosing graph.
  bool IsOuter(const std::string& name) const {
    return producers_.count(name) == 0 && name != body_.input(0).name() &&
           name != body_.input(1).name() && !name.empty();
  }

  // Whether the value is the integers {wanted}, in the body or outside.
  bool Is(const std::string& name, int64_t wanted) {
    if (const onnx::NodeProto* node = Producer(name, "Constant")) {
      const onnx::AttributeProto* value = AttributeOf(*node, "value");
      if (value == nullptr) return false;
      const absl::StatusOr<HostTensor> read = ReadTensor(value->t(), t_.folder());
      return read.ok() && IsInteger(read->type.dtype) &&
             IntegersOf(read->type, read->bytes) == std::vector<int64_t>{wanted};
    }
    if (!IsOuter(name)) return false;
    const ValueId value = t_.Find(name);
    if (!t_.ok() || !t_.IsConstant(value)) return false;
    if (!IsInteger(t_.DTypeOf(value)) && t_.DTypeOf(value) != DType::kBool) return false;
    return t_.KnownInts(value, name) == std::vector<int64_t>{wanted};
  }

  // Whether the node's axes, an attribute or input `index`, are {wanted}.
  bool AxesAre(const onnx::NodeProto& node, int index, int64_t wanted) {
    if (const onnx::AttributeProto* axes = AttributeOf(node, "axes")) {
      return axes->ints_size() == 1 && axes->ints(0) == wanted;
    }
    return Is(InputOf(node, index), wanted);
  }

  static bool IntIs(const onnx::NodeProto& node, const std::string& name, int64_t fallback,
                    int64_t wanted) {
    const onnx::AttributeProto* attribute = AttributeOf(node, name);
    return (attribute == nullptr ? fallback : attribute->i()) == wanted;
  }

  bool StaysTrue(std::string name) const {
    for (size_t nodes = 0; nodes < producers_.size(); ++nodes) {
      const onnx::NodeProto* cast = Producer(name, "Cast");
      if (cast == nullptr) break;
      name = InputOf(*cast, 0);
    }
    if (name == body_.input(1).name()) return true;
    const ValueId value = IsOuter(name) ? t_.Find(name) : kNoValue;
    if (!t_.ok() || !t_.IsConstant(value)) return false;
    const std::vector<double> flag = t_.KnownNumbers(value, name);
    return flag.size() == 1 && flag[0] != 0;
  }

  // Reduce(rows) or Reduce(Mul(rows, weights))
  bool Reduces(const std::string& name, BagLoop* loop) {
    static const std::pair<const char*, const char*> kReductions[] = {
        {"ReduceSum", "reduce_sum"}, {"ReduceMean", "reduce_mean"}, {"ReduceMax", "reduce_max"}};
    const onnx::NodeProto* reduce = nullptr;
    for (const auto& [op, reduction] : kReductions) {
      if (reduce != nullptr) break;
      reduce = Producer(name, op);
      loop->reduction = reduction;
    }
    if (reduce == nullptr || !IntIs(*reduce, "keepdims", 1, 0) || !AxesAre(*reduce, 1, 0)) {
      return false;
    }
    std::string rows = InputOf(*reduce, 0);
    if (const onnx::NodeProto* product = Producer(rows, "Mul")) {
      rows = InputOf(*product, 0);
      const onnx::NodeProto* column = Producer(InputOf(*product, 1), "Unsqueeze");
      if (column == nullptr || !AxesAre(*column, 1, 1) ||
          !Slices(InputOf(*column, 0), &loop->weights, &loop->starts, &loop->ends)) {
        return false;
      }
    }
    const onnx::NodeProto* lookup = Producer(rows, "Gather");
    if (lookup == nullptr || !IntIs(*lookup, "axis", 0, 0) || !IsOuter(InputOf(*lookup, 0))) {
      return false;
    }
    loop->table = InputOf(*lookup, 0);
    std::string starts, ends;
    if (!Slices(InputOf(*lookup, 1), &loop->ids, &starts, &ends)) return false;
    if (!loop->weights.empty() && (starts != loop->starts || ends != loop->ends)) return false;
    loop->starts = starts;
    loop->ends = ends;
    return true;
  }

  // of[starts[turn] : ends[turn]]
  bool Slices(const std::string& name, std::string* of, std::string* starts, std::string* ends) {
    const onnx::NodeProto* slice = Producer(name, "Slice");
    if (slice == nullptr || !IsOuter(InputOf(*slice, 0))) return false;
    const std::string axes = InputOf(*slice, 3), steps = InputOf(*slice, 4);
    if ((!axes.empty() && !Is(axes, 0)) || (!steps.empty() && !Is(steps, 1))) return false;
    *of = InputOf(*slice, 0);
    return Picks(InputOf(*slice, 1), starts) && Picks(InputOf(*slice, 2), ends);
  }

  // of[turn], as a vector of one element
  bool Picks(const std::string& name, std::string* of) {
    const onnx::NodeProto* vector = Producer(name, "Unsqueeze");
    if (vector == nullptr || !AxesAre(*vector, 1, 0)) return false;
    const onnx::NodeProto* element = Producer(InputOf(*vector, 0), "Gather");
    if (element == nullptr || !IntIs(*element, "axis", 0, 0) ||
        InputOf(*element, 1) != body_.input(0).name() || !IsOuter(InputOf(*element, 0))) {
      return false;
    }
    *of = InputOf(*element, 0);
    return true;
  }

  Translator& t_;
  const onnx::GraphProto& body_;
  std::map<std::string, const onnx::NodeProto*> producers_;
};

// Where the ids of each bag are found: bag b holds ids[starts[b] : ends[b]].
struct Bags {
  ValueId ids = kNoValue, starts = kNoValue, ends = kNoValue;
  int64_t count = 0;      // bags
  int64_t length = 0;     // of the rows of `count` bags that are made
  bool in_order = false;  // the rows are the ids themselves, in their order
  // [count, length]: the position of each id, and whether it is one of the bag; unless in order.
  ValueId positions = kNoValue, valid = kNoValue;
};

// Bags of one length that hold all ids in order.
bool InOrder(Translator& t, Bags* bags) {
  const std::optional<Translator::Progression> first = t.ProgressionOf(bags->starts),
                                               last = t.ProgressionOf(bags->ends);
  if (!first.has_value() || !last.has_value()) return false;
  const int64_t length = first->step;
  bags->in_order = length > 0 && last->step == length && first->start == 0 &&
                   last->start == length && length * bags->count == t.DimsOf(bags->ids)[0];
  if (bags->in_order) bags->length = length;
  return bags->in_order;
}

// The longest bag, if the offsets are known, or all ids. Returns nullopt for a bag that no slice of
// the ids can be.
std::optional<int64_t> LongestBag(Translator& t, const Bags& bags) {
  const int64_t ids = t.DimsOf(bags.ids)[0];
  if (!t.IsConstant(bags.starts) || !t.IsConstant(bags.ends)) return ids;
  const std::vector<int64_t> starts = t.KnownInts(bags.starts, "the offsets"),
                             ends = t.KnownInts(bags.ends, "the offsets");
  int64_t longest = 0;
  for (int64_t b = 0; b < bags.count; ++b) {
    if (starts[b] < 0 || ends[b] < 0) return std::nullopt;  // would count from the end
    longest = std::max(longest, std::min(ends[b], ids) - starts[b]);
  }
  return longest;
}

void FindPositions(Translator& t, Bags* bags) {
  const int64_t ids = t.DimsOf(bags->ids)[0], count = bags->count, length = bags->length;
  std::vector<int64_t> places(length);
  std::iota(places.begin(), places.end(), 0);
  const ValueId first = t.Emit("slice", {bags->starts},
                               {{"axes", std::vector<int64_t>{0}},
                                {"starts", std::vector<int64_t>{0}},
                                {"ends", std::vector<int64_t>{count}}});
  const ValueId end =
      t.Binary("minimum", t.Cast(bags->ends, DType::kI64), static_cast<double>(ids));
  const ValueId all = t.Binary("add", t.Reshape(t.Cast(first, DType::kI64), {count, 1}),
                               t.Integers(places, {1, length}));
  bags->valid = t.Emit("less", {all, t.Reshape(end, {count, 1})});
  bags->positions = t.Emit("where", {bags->valid, all, t.Integers({0}, {1, 1})});
}

// The elements of a vector as [bags, length].
ValueId Rows(Translator& t, const Bags& bags, ValueId vector) {
  return bags.in_order ? t.Reshape(vector, {bags.count, bags.length})
                       : t.Emit("gather", {vector, bags.positions}, {{"axis", int64_t{0}}});
}

ValueId ReduceBags(Translator& t, const Bags& bags, const std::string& reduction, ValueId rows) {
  if (bags.in_order) return t.Reduce(reduction, rows, {1}, false);
  const DType dtype = t.DTypeOf(rows);
  const ValueId valid = t.Reshape(bags.valid, {bags.count, bags.length, 1});
  const bool largest = reduction == "reduce_max";
  const ValueId outside = t.Scalar(largest ? -INFINITY : 0, dtype);
  rows = t.Emit("where", {valid, rows, outside});
  const ValueId result = t.Reduce(largest ? reduction : "reduce_sum", rows, {1}, false);
  if (reduction == "reduce_sum") return result;
  const ValueId sizes = t.Reduce("reduce_sum", t.Cast(bags.valid, DType::kI64), {1}, true);
  if (largest) {
    return t.Emit("where", {t.Binary("greater", sizes, 0.0), result, t.Scalar(0, dtype)});
  }
  return t.Binary("divide", result, t.Cast(t.Binary("maximum", sizes, 1.0), dtype));
}

}  // namespace

bool TranslateBagLoop(Translator& t, const onnx::GraphProto& body, int64_t count) {
  const std::optional<BagLoop> loop = BagLoopMatch(t, body).Match();
  if (!t.ok() || !loop.has_value()) return !t.ok();
  const ValueId table = t.Find(loop->table);
  const ValueId weights = loop->weights.empty() ? kNoValue : t.Find(loop->weights);
  Bags bags{t.Find(loop->ids), t.Find(loop->starts), t.Find(loop->ends), count};
  if (!t.ok()) return true;
  const auto is_vector = [&](ValueId v) { return v != kNoValue && t.RankOf(v) == 1; };
  if (table == kNoValue || t.RankOf(table) != 2 || !IsFloat(t.DTypeOf(table)) ||
      !is_vector(bags.ids) || !is_vector(bags.starts) || !is_vector(bags.ends) ||
      t.DimsOf(bags.ends)[0] != count || t.DimsOf(bags.starts)[0] < count ||
      (!loop->weights.empty() && !is_vector(weights)) ||
      (weights != kNoValue && t.DimsOf(weights) != t.DimsOf(bags.ids))) {
    return false;
  }
  const int64_t ids = t.DimsOf(bags.ids)[0];
  if (!InOrder(t, &bags)) {
    if (t.IsSymbolicBatch(count) || t.IsSymbolicBatch(ids)) {
      t.Refuse(
          "looks up bags (nn.EmbeddingBag) of different sizes, or between offsets that are data; "
          "for a batch of any size give nn.EmbeddingBag ids of shape [N, K] without offsets, or "
          "export the model with a fixed batch size");
      return true;
    }
    const std::optional<int64_t> longest = LongestBag(t, bags);
    if (!longest.has_value()) return false;
    bags.length = std::max<int64_t>(1, *longest);
    if (ids == 0 || bags.length > kMaxBagCells / std::max<int64_t>(1, count)) {
      t.Refuse(absl::StrCat("looks up ", count, " bags (nn.EmbeddingBag) of up to ", bags.length,
                            " of ", ids, " ids; taken are 1 id or more, and at most ", kMaxBagCells,
                            " as the product of bags and ids of the longest bag"));
      return true;
    }
    FindPositions(t, &bags);
  }
  ValueId rows = t.Emit("embedding", {Rows(t, bags, bags.ids), table});
  if (weights != kNoValue) {
    const ValueId column = Rows(t, bags, weights);
    if (!t.ok()) return true;
    Dims dims = t.DimsOf(column);
    dims.push_back(1);
    rows = t.Binary("multiply", rows, t.Reshape(column, dims));
  }
  t.Return(ReduceBags(t, bags, loop->reduction, rows));
  return true;
}

}  // namespace espalier::onnx_import
