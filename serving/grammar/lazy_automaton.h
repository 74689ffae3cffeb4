// Simulates a pushdown automaton byte by byte, following all readings of the text at once. A state
// is the set of all (node, stack of pending calls) pairs that the text can lead to. States are
// numbered as they are discovered and their transitions are cached. For a regular expression this
// is a lazy DFA.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "serving/grammar/automaton.h"

namespace espalier {

class LazyAutomaton {
 public:
  static constexpr int kDead = -1;  // no accepted text has this prefix
  static constexpr int kUnknown = -2;
  // Calls nested deeper than this are not followed, which limits how deep texts nest.
  static constexpr int kMaxDepth = 512;

  explicit LazyAutomaton(std::shared_ptr<const Automaton> automaton);

  // The state before any byte. Errors as for Next.
  absl::StatusOr<int> Start();
  // The state after one more byte, or kDead. Returns InvalidArgument if the grammar is too
  // ambiguous: more than kMaxItems readings of one text.
  absl::StatusOr<int> Next(int state, uint8_t byte);
  // What Next has cached, or kUnknown.
  int CachedNext(int state, uint8_t byte) const { return states_[state].next[byte]; }
  // Returns InvalidArgument if some reachable node alone has an epsilon closure of more than
  // kMaxItems items. Looks at no more than `most` items.
  static absl::Status CheckAmbiguity(std::shared_ptr<const Automaton> automaton, int64_t most);

  // States of one class accept the same continuations of up to the smaller `max_bytes` bytes.
  struct EquivalenceClass {
    int id;
    int32_t max_bytes;
  };
  EquivalenceClass EquivalenceClassOf(int state);

  // Returns this automaton's number of a state of `other`, which simulates the same automaton.
  absl::StatusOr<int> Import(const LazyAutomaton& other, int state);

  bool accepting(int state) const { return states_[state].accepting; }
  // The text is accepted and no byte can follow.
  bool complete(int state) const {
    return states_[state].accepting && states_[state].items.empty();
  }
  int size() const { return static_cast<int>(states_.size()); }
  // Items visited and states created so far, in units of at most a quarter of a microsecond.
  int64_t work() const { return work_; }
  // Approximate memory.
  int64_t bytes() const { return bytes_; }

  // Items of one state that can consume a byte.
  static constexpr int kMaxItems = 4096;

 private:
  struct Item {
    int32_t node;
    int32_t stack;
    bool operator==(const Item& other) const { return node == other.node && stack == other.stack; }
    bool operator<(const Item& other) const {
      return node != other.node ? node < other.node : stack < other.stack;
    }
    template <typename H>
    friend H AbslHashValue(H h, const Item& item) {
      return H::combine(std::move(h), item.node, item.stack);
    }
  };
  using Items = std::vector<Item>;  // sorted; only nodes with edges
  struct Frame {
    int32_t after = 0;
    int32_t below = 0;
    int32_t depth = 0;
    int32_t representative = 0;  // id of this stack with each node replaced by its representative
    int32_t copies_left = INT32_MAX;
  };
  struct State {
    Items items;
    bool accepting = false;
    std::array<int32_t, 256> next;  // kUnknown until computed
  };
  int32_t Push(int32_t after, int32_t below);
  // Appends to `items` the items of the epsilon closure of `begin` that can consume a byte.
  absl::Status EpsilonClosure(const Items& begin, Items* items, bool* accepting);
  absl::StatusOr<int> CloseAndIntern(const Items& begin);
  int Intern(Items items, bool accepting);

  std::shared_ptr<const Automaton> automaton_;
  std::vector<Frame> frames_;                    // frame 0 is the empty stack
  absl::flat_hash_map<Item, int32_t> frame_of_;  // (after, below)
  // by (representative of after, representative of below), from 1
  absl::flat_hash_map<Item, int32_t> representatives_;
  absl::flat_hash_map<Items, int> classes_;
  absl::flat_hash_set<Item> seen_;  // by EpsilonClosure
  Items work_items_;
  std::deque<State> states_;
  absl::flat_hash_map<std::pair<Items, bool>, int32_t> numbers_;
  int64_t work_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace espalier
