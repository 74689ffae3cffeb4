#include "serving/grammar/lazy_automaton.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

// Items of one epsilon closure, including those that consume no byte.
constexpr size_t kMaxSeen = 16 * LazyAutomaton::kMaxItems;
constexpr int64_t kStateWork = 8;

}  // namespace

LazyAutomaton::LazyAutomaton(std::shared_ptr<const Automaton> automaton)
    : automaton_(std::move(automaton)), frames_(1) {}

int32_t LazyAutomaton::Push(int32_t after, int32_t below) {
  const Automaton::Node& node = automaton_->nodes[after];
  if (node.only_final) return below;
  const auto [it, added] =
      frame_of_.try_emplace(Item{after, below}, static_cast<int32_t>(frames_.size()));
  if (added) {
    const Frame& under = frames_[below];
    const auto [representative, first] =
        representatives_.try_emplace(Item{node.representative, under.representative},
                                     static_cast<int32_t>(representatives_.size() + 1));
    bytes_ += static_cast<int64_t>(sizeof(Frame) + (first ? 4 : 2) * sizeof(Item));
    frames_.push_back({after, below, under.depth + 1, representative->second,
                       std::min(node.copies_left, under.copies_left)});
  }
  return it->second;
}

absl::Status LazyAutomaton::EpsilonClosure(const Items& begin, Items* items, bool* accepting) {
  seen_.clear();
  work_items_.clear();
  const auto add = [&](int32_t node, int32_t stack) {
    if (seen_.insert({node, stack}).second) work_items_.push_back({node, stack});
  };
  for (const Item& item : begin) add(item.node, item.stack);
  while (!work_items_.empty()) {
    const Item item = work_items_.back();
    work_items_.pop_back();
    ++work_;
    const Automaton::Node& node = automaton_->nodes[item.node];
    if (!node.edges.empty()) items->push_back(item);
    if (items->size() > kMaxItems || seen_.size() > kMaxSeen) {
      return absl::InvalidArgumentError(
          absl::StrCat("the structured output's grammar is too ambiguous: there are more than ",
                       kMaxItems, " ways to read one text; let alternatives begin differently"));
    }
    for (const int32_t to : node.epsilons) add(to, item.stack);
    for (const Automaton::Call& call : node.calls) {
      const int32_t stack = Push(call.after, item.stack);
      if (frames_[stack].depth <= kMaxDepth) add(call.rule, stack);
    }
    if (node.final && item.stack == 0) *accepting = true;
    if (node.final && item.stack != 0) add(frames_[item.stack].after, frames_[item.stack].below);
  }
  return absl::OkStatus();
}

absl::StatusOr<int> LazyAutomaton::CloseAndIntern(const Items& begin) {
  Items items;
  bool accepting = false;
  if (absl::Status status = EpsilonClosure(begin, &items, &accepting); !status.ok()) return status;
  if (items.empty() && !accepting) return kDead;
  return Intern(std::move(items), accepting);
}

int LazyAutomaton::Intern(Items items, bool accepting) {
  std::sort(items.begin(), items.end());
  const auto [it, added] = numbers_.try_emplace({items, accepting}, size());
  if (!added) return it->second;
  bytes_ += static_cast<int64_t>(sizeof(State) + 2 * items.size() * sizeof(Item));
  work_ += kStateWork;
  State& state = states_.emplace_back();
  state.accepting = accepting;
  state.next.fill(kDead);
  for (const Item& item : items) {
    for (const Automaton::Edge& edge : automaton_->nodes[item.node].edges) {
      std::fill(state.next.begin() + edge.low, state.next.begin() + edge.high + 1, kUnknown);
    }
  }
  state.items = std::move(items);
  return it->second;
}

absl::Status LazyAutomaton::CheckAmbiguity(std::shared_ptr<const Automaton> automaton,
                                           int64_t most) {
  const std::vector<Automaton::Node>& nodes = automaton->nodes;
  const int32_t start = automaton->start;
  std::vector<bool> known(nodes.size(), false), landed(nodes.size(), false);
  std::vector<int32_t> work;
  const auto add = [&](int32_t node) {
    if (!known[node]) work.push_back(node);
    known[node] = true;
  };
  LazyAutomaton table(std::move(automaton));
  Items items;
  bool accepting = false;
  const auto land = [&](int32_t node) {
    // A copy has as many items as its representative.
    if (landed[node] || nodes[node].representative != node || table.work_ >= most)
      return absl::OkStatus();
    landed[node] = true;
    items.clear();
    return table.EpsilonClosure({{node, 0}}, &items, &accepting);
  };
  add(start);
  absl::Status status = land(start);
  while (!work.empty() && status.ok()) {
    const Automaton::Node& node = nodes[work.back()];
    work.pop_back();
    for (const int32_t to : node.epsilons) add(to);
    for (const Automaton::Call& call : node.calls) {
      add(call.rule);
      add(call.after);
    }
    for (const Automaton::Edge& edge : node.edges) {
      status.Update(land(edge.to));
      add(edge.to);
    }
  }
  return status;
}

LazyAutomaton::EquivalenceClass LazyAutomaton::EquivalenceClassOf(int state) {
  Items members;
  int32_t left = INT32_MAX;
  for (const Item& item : states_[state].items) {
    const Automaton::Node& node = automaton_->nodes[item.node];
    const Frame& stack = frames_[item.stack];
    members.push_back({node.representative, stack.representative});
    left = std::min({left, node.copies_left, stack.copies_left});
  }
  std::sort(members.begin(), members.end());
  members.erase(std::unique(members.begin(), members.end()), members.end());
  const int64_t bytes = static_cast<int64_t>(members.size() * sizeof(Item));
  const auto [it, added] =
      classes_.try_emplace(std::move(members), static_cast<int>(classes_.size()));
  if (added) bytes_ += bytes;
  return {it->second, left};
}

absl::StatusOr<int> LazyAutomaton::Start() { return CloseAndIntern({{automaton_->start, 0}}); }

absl::StatusOr<int> LazyAutomaton::Next(int state, uint8_t byte) {
  if (states_[state].next[byte] != kUnknown) return states_[state].next[byte];
  Items begin;
  for (const Item& item : states_[state].items) {
    for (const Automaton::Edge& edge : automaton_->nodes[item.node].edges) {
      ++work_;
      if (byte >= edge.low && byte <= edge.high) begin.push_back({edge.to, item.stack});
    }
  }
  absl::StatusOr<int> next = begin.empty() ? kDead : CloseAndIntern(begin);
  if (next.ok()) states_[state].next[byte] = *next;
  return next;
}

absl::StatusOr<int> LazyAutomaton::Import(const LazyAutomaton& other, int state) {
  Items begin;
  for (const Item& item : other.states_[state].items) {
    std::vector<int32_t> afters;
    for (int32_t frame = item.stack; frame != 0; frame = other.frames_[frame].below) {
      afters.push_back(other.frames_[frame].after);
    }
    int32_t stack = 0;
    for (size_t i = afters.size(); i > 0; --i) stack = Push(afters[i - 1], stack);
    begin.push_back({item.node, stack});
  }
  // The items are closed already; only acceptance is missing.
  return Intern(std::move(begin), other.states_[state].accepting);
}

}  // namespace espalier
