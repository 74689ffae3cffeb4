// All ways to read a text by an automaton at once, byte by byte. A state is the set of all pairs of
// a node and a stack of pending calls that the text so far can have led to; states are numbered as
// they are met, and what follows each of them by which byte is remembered. For a regular expression
// that is the DFA, made as far as it is needed.
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
  static constexpr int kDead = -1;  // no text with this beginning is accepted
  static constexpr int kUnknown = -2;
  // Calls deeper than this are as if they could not be made: a text nests so deep and no deeper.
  static constexpr int kMaxDepth = 512;

  explicit LazyAutomaton(std::shared_ptr<const Automaton> automaton);

  // Before any byte. Errors as Next.
  absl::StatusOr<int> Start();
  // The state after one byte more, or kDead. InvalidArgument if the grammar is too ambiguous: more
  // than kMaxItems ways to read one text.
  absl::StatusOr<int> Next(int state, uint8_t byte);
  // What Next has found before, or kUnknown.
  int CachedNext(int state, uint8_t byte) const { return states_[state].next[byte]; }
  // InvalidArgument, as Next, if a place of the grammar that can be reached has more than kMaxItems
  // ways on by itself. Looks at `most` items, no further.
  static absl::Status CheckAmbiguity(std::shared_ptr<const Automaton> automaton, int64_t most);

  // After two states of one outline the same texts can come, up to the lesser `left` bytes.
  struct EquivalenceClass {
    int id;
    int32_t max_bytes;
  };
  EquivalenceClass EquivalenceClassOf(int state);

  // The same state in this table, of one of another table over the same automaton.
  absl::StatusOr<int> Import(const LazyAutomaton& other, int state);

  bool accepting(int state) const { return states_[state].accepting; }
  // Accepted, and no byte can follow.
  bool complete(int state) const {
    return states_[state].accepting && states_[state].items.empty();
  }
  int size() const { return static_cast<int>(states_.size()); }
  // Items that were looked at and states that were made so far: what the table has cost, in steps
  // of a fourth of a microsecond and less.
  int64_t work() const { return work_; }
  // Of memory, about.
  int64_t bytes() const { return bytes_; }

  // Of one state; those that the next byte can follow.
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
    int32_t representative = 0;  // number of the stack of the nodes that these are like
    int32_t copies_left = INT32_MAX;
  };
  struct State {
    Items items;
    bool accepting = false;
    std::array<int32_t, 256> next;  // kUnknown until asked for
  };
  int32_t Push(int32_t after, int32_t below);
  // Follows all that needs no byte: items that a byte can follow are put into `items`.
  absl::Status EpsilonClosure(const Items& begin, Items* items, bool* accepting);
  absl::StatusOr<int> CloseAndIntern(const Items& begin);
  int Intern(Items items, bool accepting);

  std::shared_ptr<const Automaton> automaton_;
  std::vector<Frame> frames_;                    // frame 0: the empty stack
  absl::flat_hash_map<Item, int32_t> frame_of_;  // (after, below)
  absl::flat_hash_map<Item, int32_t> representatives_;     // (like of after, like of below), from 1 on
  absl::flat_hash_map<Items, int> classes_;
  absl::flat_hash_set<Item> seen_;  // of EpsilonClosure
  Items work_items_;
  std::deque<State> states_;
  absl::flat_hash_map<std::pair<Items, bool>, int32_t> numbers_;
  int64_t work_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace espalier
