#include "serving/grammar/parse_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace espalier {

ParseTable::ParseTable(std::shared_ptr<const Automaton> automaton)
    : automaton_(std::move(automaton)), frames_(1) {}

int32_t ParseTable::Push(int32_t after, int32_t below) {
  if (automaton_->nodes[after].only_final) return below;
  const auto [it, added] =
      frame_of_.try_emplace(Item{after, below}, static_cast<int32_t>(frames_.size()));
  if (added) {
    bytes_ += static_cast<int64_t>(sizeof(Frame) + 2 * sizeof(Item));
    frames_.push_back({after, below, frames_[below].depth + 1});
  }
  return it->second;
}

absl::StatusOr<int> ParseTable::Close(Items begin) {
  absl::flat_hash_set<Item> seen;
  Items items, work;
  bool accepting = false;
  const auto add = [&](int32_t node, int32_t stack) {
    if (seen.insert({node, stack}).second) work.push_back({node, stack});
  };
  for (const Item& item : begin) add(item.node, item.stack);
  while (!work.empty()) {
    const Item item = work.back();
    work.pop_back();
    ++work_;
    if (static_cast<int>(seen.size()) > kMaxItems) {
      return absl::InvalidArgumentError(
          absl::StrCat("the structured output's grammar is too ambiguous: there are more than ",
                       kMaxItems, " ways to read what was generated so far"));
    }
    const Automaton::Node& node = automaton_->nodes[item.node];
    for (const int32_t to : node.jumps) add(to, item.stack);
    for (const Automaton::Call& call : node.calls) {
      const int32_t stack = Push(call.after, item.stack);
      if (frames_[stack].depth <= kMaxDepth) add(call.rule, stack);
    }
    if (node.final && item.stack == 0) accepting = true;
    if (node.final && item.stack != 0) add(frames_[item.stack].after, frames_[item.stack].below);
    if (!node.edges.empty()) items.push_back(item);
  }
  if (items.empty() && !accepting) return kDead;
  return Number(std::move(items), accepting);
}

int ParseTable::Number(Items items, bool accepting) {
  std::sort(items.begin(), items.end());
  const auto [it, added] = numbers_.try_emplace({items, accepting}, size());
  if (added) {
    bytes_ += static_cast<int64_t>(sizeof(State) + 2 * items.size() * sizeof(Item));
    states_.push_back({std::move(items), accepting, {}});
    states_.back().next.fill(kUnknown);
  }
  return it->second;
}

absl::StatusOr<int> ParseTable::Start() { return Close({{automaton_->start, 0}}); }

absl::StatusOr<int> ParseTable::Next(int state, uint8_t byte) {
  if (states_[state].next[byte] != kUnknown) return states_[state].next[byte];
  Items begin;
  for (const Item& item : states_[state].items) {
    for (const Automaton::Edge& edge : automaton_->nodes[item.node].edges) {
      ++work_;
      if (byte >= edge.low && byte <= edge.high) begin.push_back({edge.to, item.stack});
    }
  }
  absl::StatusOr<int> next = begin.empty() ? kDead : Close(std::move(begin));
  if (next.ok()) states_[state].next[byte] = *next;
  return next;
}

absl::StatusOr<int> ParseTable::Import(const ParseTable& other, int state) {
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
  // The items are closed already, all but whether the end was reached.
  return Number(std::move(begin), other.states_[state].accepting);
}

}  // namespace espalier
