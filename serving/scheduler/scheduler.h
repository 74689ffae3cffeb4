// Continuous batching as a pure policy: a snapshot of all requests in, the work of one step out. No
// state, no clock, no chance.
//
// Policy, in order:
// 1. Requests that decode get one row for their last token and the rows of their draft tree; the
// one that
//    waited longest comes first. Greedy trees shrink to what is left. Sampled ones are whole or
//    wait for the next step, so that what a request draws does not depend on its company.
// 2. Prompts (of running requests, then of waiting ones in order of arrival) fill what is left, in
// chunks;
//    a quarter of the rows is kept for them against trees, though not against last tokens.
// 3. When KV slots run out, the youngest request loses its own and waits to be computed again. New
//    requests are admitted only while slots remain for what the running ones are known to need.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace espalier {

// A KV pool belongs to one model: pool 0 to the LLM, the others to the SSMs.
struct RequestView {
  int64_t id = 0;
  int length = 0;             // tokens so far
  bool started = false;       // has emitted a token
  std::vector<int> computed;  // by pool: tokens in its KV cache; -1: does not use the pool
  int tree_nodes = 0;         // the most that it can draft now
  bool tree_may_shrink = true;
  int64_t last_step = 0;  // when it last decoded

  // Rows to run before it can decode. A request that has emitted keeps its last token for the root
  // of a tree; a new one takes its first token from the end of the prompt, without a tree.
  int prompt_left() const { return length - (started ? 1 : 0) - computed[0]; }
};

struct SchedulerInput {
  int max_rows = 0;
  int max_running = 0;
  std::vector<int> free_slots;       // by pool
  std::vector<int> total_slots;      // by pool
  std::vector<RequestView> running;  // oldest first
  std::vector<RequestView> waiting;  // in order of admission
};

struct Assignment {
  int64_t id = 0;
  int rows = 0;        // of its own tokens, from the first that is not computed
  int tree_nodes = 0;  // besides
  bool decodes = false;
};

struct Schedule {
  std::vector<int64_t> preempt;  // first; youngest first
  std::vector<int64_t> admit;    // then, in this order
  std::vector<Assignment> work;
};

// REQUIRES: max_rows > the tree_nodes of any request that may not shrink; each pool can hold any
// single request with its tree. Then, if anything is running or waiting, `work` is not empty.
Schedule MakeSchedule(const SchedulerInput& input);

}  // namespace espalier
