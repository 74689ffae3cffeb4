// Continuous batching as a pure policy: a snapshot of all requests in, the work of one step out. No
// state, no clock, no chance.
//
// Policy, in order:
// 1. Requests that decode get one row for their last token and the rows of their draft tree; the
//    more important come first, among equals the one that waited longest. Greedy trees shrink to
//    what is left. Sampled ones are whole or wait for the next step, so that what a request draws
//    does not depend on its company.
// 2. Prompts (of running requests, then of waiting ones) fill what is left, in chunks; a quarter of
//    the rows is kept for them against trees, though not against last tokens. While others have
//    prompts to compute too, one prompt gets half of what is left, so a short one is not stuck
//    behind a long one.
// 3. When KV slots run out, the lowest in rank loses its own and waits to be computed again. New
//    requests are admitted only while slots remain for what the running ones are known to need. One
//    that is more important than running ones takes the place of the least important of them, if
//    that is enough, in the step after. One that begins like another whose prompt is being computed
//    waits for it: the same is not computed twice.
//
// Where several steps run at once, a request whose last step has not ended keeps what it has and
// gets nothing; and nobody is preempted for want of slots, because what those steps free is soon
// known.
//
// Rank is priority, the lower number first, then age, the older first.
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
  bool busy = false;          // running, in a step that has not ended: it gets no work
  bool in_flight = false;     // rows of it are in a step that has not ended
  int tree_nodes = 0;         // the most that it can draft now
  bool tree_may_shrink = true;
  int64_t last_step = 0;  // when it last decoded
  int priority = 0;
  // By pool (empty: none): of the computed tokens' slots, those that preemption would not free,
  // because other requests use them too.
  std::vector<int> shared;
  // Of a waiting request: slots of its computed tokens that count as free until it is admitted.
  int idle_prefix = 0;
  // Of a waiting request: one before it that is still to compute what both begin with. It keeps its
  // place, and is not admitted while that one is there. 0: none.
  int64_t behind = 0;

  bool Outranks(const RequestView& other) const {
    return priority != other.priority ? priority < other.priority : id < other.id;
  }

  // Rows to run before it can decode. A request that has emitted keeps its last token for the root
  // of a tree; a new one takes its first token from the end of the prompt, without a tree. Of a
  // waiting request at least one.
  int prompt_left() const { return length - (started ? 1 : 0) - computed[0]; }
};

struct SchedulerInput {
  int max_rows = 0;
  int max_running = 0;
  int max_decoding = INT_MAX;        // requests that decode in this step
  bool others_run = false;           // steps that have not ended
  std::vector<int> free_slots;       // by pool
  std::vector<int> total_slots;      // by pool
  std::vector<RequestView> running;  // by rank
  std::vector<RequestView> waiting;  // by rank
};

struct Assignment {
  int64_t id = 0;
  int rows = 0;        // of its own tokens, from the first that is not computed
  int tree_nodes = 0;  // besides
  bool decodes = false;
};

struct Schedule {
  std::vector<int64_t> preempt;  // first; lowest in rank first
  std::vector<int64_t> admit;    // then, in this order
  std::vector<Assignment> work;
};

// Slots of a pool of so many that stay free when a request is admitted beside others.
inline int SpareSlots(int total) { return total / 16; }

// REQUIRES: max_rows > the tree_nodes of any request that may not shrink; each pool can hold any
// single request with its tree. Then, if anything is running or waiting and no other step runs,
// `work` or `preempt` is not empty.
Schedule MakeSchedule(const SchedulerInput& input);

}  // namespace espalier
