// A grammar as a pushdown automaton over the bytes of UTF-8, immutable and without dead ends: from
// every node that can be reached, some text leads to the end.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "serving/grammar/grammar.h"

namespace espalier {

struct Automaton {
  struct Edge {
    uint8_t low, high;  // bytes, both ends included
    int32_t to;
  };
  struct Call {
    int32_t rule;   // the node at which the called rule begins
    int32_t after;  // where it goes on when the rule is done
  };
  struct Node {
    std::vector<Edge> edges;
    std::vector<int32_t> epsilons;  // without a byte
    std::vector<Call> calls;
    bool final = false;  // its rule is done
    // Nothing but its rule's end can follow, so a call that goes on here need not come back.
    bool only_final = false;
    // Of the copies that a count makes of a part: the same node of the first one, and how many
    // copies are left behind this one. As each takes a byte at least, from here and from there, or
    // from any node like it, the same texts of so many bytes go on as can from the one with fewer.
    int32_t representative = 0;  // itself, if it is in no copy
    int32_t copies_left = INT32_MAX;
  };

  std::vector<Node> nodes;
  int32_t start = 0;
};

// Thompson's construction, one fragment per rule. InvalidArgument naming the rule: it is not
// defined, is left-recursive, or no finite text matches the root; or the grammar needs more nodes
// than kMaxAutomatonNodes (repetition counts multiply).
absl::StatusOr<std::shared_ptr<const Automaton>> BuildAutomaton(const Grammar& grammar);

inline constexpr int kMaxAutomatonNodes = 200'000;

}  // namespace espalier
