// Continuous batching as a pure policy: takes a snapshot of all requests, returns the work of one
// step. No state, no clock, no randomness.
//
// Policy, in order:
// 1. Decoding requests get one row for their last token and rows for their draft tree, by priority
//   and then by the time since they last decoded. Greedy trees shrink to the rows left. Sampled
//   trees are run whole or wait for the next step, so that samples do not depend on the batch.
// 2. Prompts (of running requests, then of waiting ones) fill the remaining rows in chunks (chunked
//   prefill). A quarter of the rows is reserved for them against trees, though not against last
//   tokens. While other prompts wait, one prompt gets at most half of the remaining rows, so that a
//   short prompt does not wait for a long one.
// 3. If KV slots run out, the request of lowest rank is preempted and recomputed later. New
//   requests are admitted only while slots remain for the known needs of the running ones. A
//   waiting request of higher priority preempts running ones of lower priority in the next step, if
//   that frees enough. A request waits while another one computes a prefix that both share.
//
// With concurrent steps, a request in a step in flight keeps its slots and gets no work. Nobody is
// preempted for lack of slots then, because those steps will soon free some.
//
// Rank: priority (lower number first), then age (older first).
#pragma once

#include <climits>
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
  bool busy = false;          // running, in a step in flight: it gets no work
  bool in_flight = false;     // has rows in a step in flight
  int tree_nodes = 0;         // the most that it can draft now
  bool tree_may_shrink = true;
  int64_t last_step = 0;  // in which it last decoded
  int priority = 0;
  // By pool (empty: none): slots of computed tokens that preemption would not free, because other
  // requests use them.
  std::vector<int> shared;
  // Of a waiting request: slots of its computed tokens that count as free until it is admitted.
  int idle_prefix_slots = 0;
  // Of a waiting request: an earlier request that is going to compute a shared prefix. This one
  // keeps its rank and is not admitted meanwhile. 0: none.
  int64_t prefix_producer = 0;

  bool Outranks(const RequestView& other) const {
    return priority != other.priority ? priority < other.priority : id < other.id;
  }

  // Rows to run before it can decode. A request that has emitted tokens keeps its last one as the
  // root of a tree; a new one gets its first token from the end of the prompt, without a tree. At
  // least one for a waiting request.
  int prompt_left() const { return length - (started ? 1 : 0) - computed[0]; }
};

struct SchedulerInput {
  int max_rows = 0;
  int max_running = 0;
  int max_decoding = INT_MAX;  // requests that decode in this step
  bool steps_in_flight = false;
  std::vector<int> free_slots;       // by pool
  std::vector<int> total_slots;      // by pool
  std::vector<RequestView> running;  // by rank
  std::vector<RequestView> waiting;  // by rank
};

struct Assignment {
  int64_t id = 0;
  int rows = 0;        // of its own tokens, from the first one not computed
  int tree_nodes = 0;  // in addition
  bool decodes = false;
};

struct Schedule {
  std::vector<int64_t> preempt;  // first; lowest rank first
  std::vector<int64_t> admit;    // then, in this order
  std::vector<Assignment> work;
};

// Slots of a pool of this size that stay free when a request is admitted beside others.
inline int SpareSlots(int total) { return total / 16; }

// REQUIRES: max_rows exceeds the tree_nodes of any request whose tree may not shrink; each pool can
// hold any single request with its tree. Then `work` or `preempt` is not empty if any request is
// running or waiting and no step is in flight.
Schedule MakeSchedule(const SchedulerInput& input);

}  // namespace espalier
