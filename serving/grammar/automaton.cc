#include "serving/grammar/automaton.h"

#include <algorithm>
#include <functional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "serving/grammar/thompson.h"

namespace espalier {
namespace {

// Limits repetition of parts without nodes, which kMaxAutomatonNodes does not see.
constexpr int64_t kMaxSteps = 4'000'000;

class AutomatonBuilder : public ThompsonBuilder {
 public:
  explicit AutomatonBuilder(const Grammar& grammar)
      : ThompsonBuilder(kMaxAutomatonNodes, kMaxSteps,
                        absl::InvalidArgumentError(
                            absl::StrCat("the grammar needs more than ", kMaxAutomatonNodes,
                                         " states; repetition counts multiply it: lower them"))),
        grammar_(grammar) {}

  absl::StatusOr<std::shared_ptr<const Automaton>> Build() {
    for (const auto& [name, rule] : grammar_.rules) starts_[name] = NewNode();
    for (const auto& [name, rule] : grammar_.rules) {
      const int32_t end = Add(rule, starts_[name]);
      out_->nodes[end].final = true;
      if (!status().ok()) return Named(name, status());
    }
    const auto root = starts_.find(grammar_.root);
    if (root == starts_.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the grammar has no rule '", grammar_.root, "', its root"));
    }
    out_->start = root->second;
    nullable_ = Reaching(/*by_bytes=*/false);
    alive_ = Reaching(/*by_bytes=*/true);
    if (!alive_[out_->start]) {
      return Named(grammar_.root, absl::InvalidArgumentError("no finite text matches it"));
    }
    if (absl::Status status = RefuseLeftRecursion(); !status.ok()) return status;
    Prune();
    MarkOnlyFinal();
    MarkCopies();
    return std::shared_ptr<const Automaton>(std::move(out_));
  }

 private:
  using Node = Automaton::Node;

  static absl::Status Named(const std::string& rule, const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat("rule '", rule, "': ", status.message()));
  }

  void AppendNode() override { out_->nodes.emplace_back(); }
  void AddEpsilon(int32_t from, int32_t to) override { out_->nodes[from].epsilons.push_back(to); }

  int32_t AddLiteral(absl::string_view bytes, int32_t from) override {
    for (const char c : bytes) {
      const int32_t to = NewNode();
      const uint8_t byte = static_cast<uint8_t>(c);
      out_->nodes[from].edges.push_back({byte, byte, to});
      from = to;
    }
    return from;
  }

  int32_t AddCall(const std::string& name, int32_t from) override {
    const auto rule = starts_.find(name);
    if (rule == starts_.end()) {
      Fail(absl::InvalidArgumentError(absl::StrCat("it calls '", name, "', which is not defined")));
      return from;
    }
    const int32_t to = NewNode();
    out_->nodes[from].calls.push_back({rule->second, to});
    return to;
  }

  // The bytes with which all texts of an expression begin, and the expressions that follow.
  struct CommonPrefix {
    std::string bytes;
    std::vector<const Expression*> rest;

    void Take(const Expression& e) {
      if (!rest.empty()) {
        rest.push_back(&e);
      } else if (e.kind == Expression::kLiteral) {
        bytes += e.text;
      } else if (e.kind == Expression::kSequence) {
        for (const Expression& part : e.parts) Take(part);
      } else if (e.kind == Expression::kClass && e.points.size() == 1 &&
                 e.points[0].first == e.points[0].second) {
        AppendUtf8(e.points[0].first, &bytes);
      } else {
        rest.push_back(&e);
      }
    }
  };

  // Alternatives share common prefixes, so that thousands of constants do not become thousands of
  // readings of one text.
  int32_t AddChoice(const std::vector<Expression>& parts, int32_t from) override {
    const int32_t to = NewNode();
    absl::flat_hash_map<std::pair<int32_t, uint8_t>, int32_t> next;
    absl::flat_hash_set<int32_t> ends;
    for (const Expression& part : parts) {
      CommonPrefix beginning;
      beginning.Take(part);
      if (!Spend(1 + static_cast<int64_t>(beginning.bytes.size()))) return from;
      int32_t at = from;
      for (const char c : beginning.bytes) {
        const uint8_t byte = static_cast<uint8_t>(c);
        const auto [it, added] = next.try_emplace({at, byte});
        if (added) {
          it->second = NewNode();
          out_->nodes[at].edges.push_back({byte, byte, it->second});
        }
        at = it->second;
      }
      for (const Expression* rest : beginning.rest) at = Add(*rest, at);
      if (ends.insert(at).second) AddEpsilon(at, to);
    }
    return to;
  }

  void OnCopies(int32_t first, int32_t size, int32_t count) override {
    copies_.push_back({first, size, count});
  }

  int32_t AddClass(const CodePoints& points, int32_t from) override {
    const int32_t to = NewNode();
    // tails[n]: a node that is n arbitrary continuation bytes before `to`; shared by all ranges.
    int32_t tails[4] = {to, -1, -1, -1};
    for (const auto& [low, high] : points) AddRange(low, high, from, tails);
    return to;
  }

  int32_t Tail(int bytes, int32_t* tails) {
    if (tails[bytes] >= 0) return tails[bytes];
    const int32_t next = Tail(bytes - 1, tails);
    const int32_t node = NewNode();
    out_->nodes[node].edges.push_back({0x80, 0xBF, next});
    return tails[bytes] = node;
  }

  // Splits a range of code points until each byte of the UTF-8 encoding has one range.
  void AddRange(uint32_t low, uint32_t high, int32_t from, int32_t* tails) {
    if (!status().ok()) return;
    for (const uint32_t last : {0x7Fu, 0x7FFu, 0xFFFFu}) {
      if (low <= last && high > last) {
        AddRange(low, last, from, tails);
        AddRange(last + 1, high, from, tails);
        return;
      }
    }
    for (int bits = 6; high >= 0x80 && bits < 24; bits += 6) {
      const uint32_t mask = (1u << bits) - 1;
      if ((low & ~mask) == (high & ~mask)) break;
      if ((low & mask) != 0) {
        AddRange(low, low | mask, from, tails);
        AddRange((low | mask) + 1, high, from, tails);
        return;
      }
      if ((high & mask) != mask) {
        AddRange(low, (high & ~mask) - 1, from, tails);
        AddRange(high & ~mask, high, from, tails);
        return;
      }
    }
    std::string first, last;
    AppendUtf8(low, &first);
    AppendUtf8(high, &last);
    const int length = static_cast<int>(first.size());
    for (int i = 0; i < length; ++i) {
      bool any_follow = true;
      for (int j = i + 1; j < length; ++j) {
        any_follow &=
            static_cast<uint8_t>(first[j]) == 0x80 && static_cast<uint8_t>(last[j]) == 0xBF;
      }
      const int32_t to = any_follow ? Tail(length - 1 - i, tails) : NewNode();
      out_->nodes[from].edges.push_back(
          {static_cast<uint8_t>(first[i]), static_cast<uint8_t>(last[i]), to});
      if (any_follow) return;
      from = to;
    }
  }

  // Which nodes can reach the end of their rule; without `by_bytes`, without consuming a byte.
  std::vector<bool> Reaching(bool by_bytes) const {
    const std::vector<Node>& nodes = out_->nodes;
    struct Caller {
      int32_t node;
      Automaton::Call call;
    };
    std::vector<std::vector<int32_t>> before(nodes.size());  // by epsilons and edges
    std::vector<std::vector<Caller>> to_after(nodes.size());
    std::vector<std::vector<Caller>> to_rule(nodes.size());
    std::vector<bool> reaches(nodes.size(), false);
    std::vector<int32_t> work;
    const auto reach = [&](int32_t node) {
      if (reaches[node]) return;
      reaches[node] = true;
      work.push_back(node);
    };
    for (size_t i = 0; i < nodes.size(); ++i) {
      const int32_t node = static_cast<int32_t>(i);
      for (const int32_t to : nodes[i].epsilons) before[to].push_back(node);
      for (const Automaton::Edge& edge : nodes[i].edges) {
        if (by_bytes) before[edge.to].push_back(node);
      }
      for (const Automaton::Call& call : nodes[i].calls) {
        to_after[call.after].push_back({node, call});
        to_rule[call.rule].push_back({node, call});
      }
      if (nodes[i].final) reach(node);
    }
    while (!work.empty()) {
      const int32_t node = work.back();
      work.pop_back();
      for (const int32_t from : before[node]) reach(from);
      for (const Caller& caller : to_after[node]) {
        if (reaches[caller.call.rule]) reach(caller.node);
      }
      for (const Caller& caller : to_rule[node]) {
        if (reaches[caller.call.after]) reach(caller.node);
      }
    }
    return reaches;
  }

  // Visits the nodes that can be reached from `node` in one step that consumes no byte.
  template <typename Visit>
  void WithoutBytes(int32_t node, const Visit& visit) const {
    for (const int32_t to : out_->nodes[node].epsilons) visit(to, false);
    for (const Automaton::Call& call : out_->nodes[node].calls) {
      visit(call.rule, true);
      if (nullable_[call.rule]) visit(call.after, false);
    }
  }

  // A rule that calls itself before it consumes a byte would recurse forever. Finds such cycles by
  // Tarjan's strongly connected components algorithm, without recursion.
  absl::Status RefuseLeftRecursion() const {
    const size_t count = out_->nodes.size();
    std::vector<int32_t> index(count, -1), low(count, 0), component(count, -1), stack;
    struct Frame {
      int32_t node;
      std::vector<int32_t> next;
    };
    int32_t counter = 0, components = 0;
    std::vector<Frame> frames;
    const auto enter = [&](int32_t node) {
      index[node] = low[node] = counter++;
      stack.push_back(node);
      frames.push_back({node, {}});
      WithoutBytes(node, [&](int32_t to, bool) { frames.back().next.push_back(to); });
    };
    for (size_t i = 0; i < count; ++i) {
      if (index[i] >= 0) continue;
      enter(static_cast<int32_t>(i));
      while (!frames.empty()) {
        const int32_t node = frames.back().node;
        if (!frames.back().next.empty()) {
          const int32_t to = frames.back().next.back();
          frames.back().next.pop_back();
          if (index[to] < 0) {
            enter(to);
          } else if (component[to] < 0) {
            low[node] = std::min(low[node], index[to]);
          }
          continue;
        }
        frames.pop_back();
        if (!frames.empty()) {
          low[frames.back().node] = std::min(low[frames.back().node], low[node]);
        }
        if (low[node] != index[node]) continue;
        while (component[node] < 0) {
          component[stack.back()] = components;
          stack.pop_back();
        }
        ++components;
      }
    }
    for (size_t i = 0; i < count; ++i) {
      for (const Automaton::Call& call : out_->nodes[i].calls) {
        if (component[i] != component[call.rule]) continue;
        for (const auto& [name, start] : starts_) {
          if (start != call.rule) continue;
          return Named(name, absl::InvalidArgumentError(
                                 "it is left-recursive: it calls itself before it consumes a "
                                 "character; put the recursion last"));
        }
      }
    }
    return absl::OkStatus();
  }

  void Prune() {
    for (Node& node : out_->nodes) {
      const auto erase = [](auto& list, const auto& dead) {
        list.erase(std::remove_if(list.begin(), list.end(), dead), list.end());
      };
      erase(node.edges, [this](const Automaton::Edge& edge) { return !alive_[edge.to]; });
      erase(node.epsilons, [this](int32_t to) { return !alive_[to]; });
      erase(node.calls, [this](const Automaton::Call& call) {
        return !alive_[call.rule] || !alive_[call.after];
      });
    }
  }

  void MarkOnlyFinal() {
    std::vector<Node>& nodes = out_->nodes;
    std::vector<std::vector<int32_t>> before(nodes.size());
    std::vector<bool> works(nodes.size(), false);  // reaches an edge or a call by epsilons
    std::vector<int32_t> work;
    for (size_t i = 0; i < nodes.size(); ++i) {
      for (const int32_t to : nodes[i].epsilons) before[to].push_back(static_cast<int32_t>(i));
      if (nodes[i].edges.empty() && nodes[i].calls.empty()) continue;
      works[i] = true;
      work.push_back(static_cast<int32_t>(i));
    }
    while (!work.empty()) {
      const int32_t node = work.back();
      work.pop_back();
      for (const int32_t from : before[node]) {
        if (works[from]) continue;
        works[from] = true;
        work.push_back(from);
      }
    }
    for (size_t i = 0; i < nodes.size(); ++i) nodes[i].only_final = alive_[i] && !works[i];
  }

  // Inner copies come first in copies_, so their representatives are known.
  void MarkCopies() {
    std::vector<Node>& nodes = out_->nodes;
    for (size_t i = 0; i < nodes.size(); ++i) nodes[i].representative = static_cast<int32_t>(i);
    for (const Copies& copies : copies_) {
      for (int32_t copy = 0; copy < copies.count; ++copy) {
        for (int32_t i = 0; i < copies.size; ++i) {
          Node& node = nodes[copies.first + copy * copies.size + i];
          node.representative = nodes[copies.first + i].representative;
          node.copies_left = std::min(node.copies_left, copies.count - 1 - copy);
        }
      }
    }
  }

  struct Copies {
    int32_t first, size, count;
  };

  const Grammar& grammar_;
  std::shared_ptr<Automaton> out_ = std::make_shared<Automaton>();
  std::map<std::string, int32_t> starts_;
  std::vector<Copies> copies_;
  std::vector<bool> nullable_, alive_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const Automaton>> BuildAutomaton(const Grammar& grammar) {
  return AutomatonBuilder(grammar).Build();
}

}  // namespace espalier
