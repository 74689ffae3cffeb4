// A grammar as a pushdown automaton over UTF-8 bytes. Immutable. Has no dead ends: from every
// reachable node some text leads to acceptance.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "serving/grammar/grammar.h"

namespace espalier {

struct Automaton {
  struct Edge {
    uint8_t low, high;  // bytes, inclusive
    int32_t to;
  };
  struct Call {
    int32_t rule;   // the node at which the called rule begins
    int32_t after;  // the node to return to
  };
  struct Node {
    std::vector<Edge> edges;
    std::vector<int32_t> epsilons;  // transitions that consume no byte
    std::vector<Call> calls;
    bool final = false;  // its rule ends here
    // Only the end of its rule can follow, so a call that returns here needs no stack frame.
    bool only_final = false;
    // Counted repetition copies a part. `representative` is the same node in the first copy, and
    // `copies_left` the number of copies behind this one. Each copy consumes at least one byte. So
    // two nodes with the same representative accept the same continuations up to the smaller
    // `copies_left` in bytes.
    int32_t representative = 0;  // the node itself if it is in no copy
    int32_t copies_left = INT32_MAX;
  };

  std::vector<Node> nodes;
  int32_t start = 0;
};

// Builds the automaton by Thompson's construction, one fragment per rule. Returns InvalidArgument
// naming the rule if it is undefined or left-recursive, if the root matches no finite text, or if
// the grammar needs more than kMaxAutomatonNodes nodes (nested repetition counts multiply).
absl::StatusOr<std::shared_ptr<const Automaton>> BuildAutomaton(const Grammar& grammar);

inline constexpr int kMaxAutomatonNodes = 200'000;

}  // namespace espalier
