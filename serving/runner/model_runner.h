// The interface between the serving engine and the component that runs the model. worker/
// implements it with the executor that also trains; tests implement it with small functions.
//
// KV cache: a pool of `kv_slots` slots per layer, each holding K and V of one token. The engine
// assigns slot numbers (serving/kv); a sequence is an ordered list of slots. A token of a draft
// tree is written into a free slot. If it is accepted, its slot number is appended to the
// sequence's list; nothing is copied.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "serving/sampling/logit_edits.h"
#include "serving/sampling/logprobs.h"
#include "serving/sampling/sampler.h"

namespace espalier {

// How the next tokens of a sequence are sampled.
struct SamplingMetadata {
  SamplingParameters sampling;  // greedy by default
  bool coupled = false;         // see SampleToken
  // Applied to the logits before sampling; null: none.
  std::shared_ptr<const SequenceLogitEdits> edits;
  // Number of most probable tokens reported with a sampled token and with a prompt token; -1: no
  // log-probabilities.
  int logprobs = -1;
  int prompt_logprobs = -1;

  bool plain() const {
    return sampling == SamplingParameters() && !coupled && edits == nullptr && logprobs < 0 &&
           prompt_logprobs < 0;
  }
};

// One step over rows of any mix of sequences: prompt chunks, single tokens, tree nodes. Row r
// attends, in this order, to the first row_prefix[r] slots of its sequence and then to its
// ancestors. Its own slot is among them (the last one): K and V of all rows are written before any
// row attends.
struct RunnerBatch {
  // Per row.
  std::vector<int32_t> tokens;
  std::vector<int32_t> positions;  // for rotary embedding: position in the sequence, not the slot
  std::vector<int32_t> slots;      // where K and V of the row are written; all different
  std::vector<int32_t> row_sequence;  // index into the sequences below
  std::vector<int32_t> row_prefix;
  std::vector<int32_t> ancestor_start;  // rows + 1 offsets into ancestor_slots
  // Tree ancestors, root first, the row's own slot last; empty for rows in the sequence itself.
  std::vector<int32_t> ancestor_slots;
  std::vector<int32_t> row_adapter;  // index of a LoRA adapter, -1: none; empty: none for all rows
  // Per sequence.
  std::vector<int32_t> sequence_start;              // sequences + 1 offsets into sequence_slots
  std::vector<int32_t> sequence_slots;              // by position, including the rows of this step
  std::vector<SamplingMetadata> sequence_sampling;  // empty: all greedy

  std::vector<int32_t> logit_rows;  // rows whose outputs are needed, ascending
  bool wants_hidden = false;        // their hidden states, too
  // Per entry of logit_rows, the output: kLogits (all logits), kToken (a token sampled with the
  // sequence's metadata), kPromptLogprob (the log-probability of the next prompt token), or n > 0
  // (the n most probable tokens). Empty: kLogits for all. See row_outputs.h.
  std::vector<int32_t> row_outputs;
  static constexpr int32_t kLogits = 0, kToken = -1, kPromptLogprob = -2;
  // per entry of logit_rows, for kPromptLogprob; empty if unused
  std::vector<int32_t> next_prompt_tokens;
  // per entry of logit_rows, in addition to the sequence's; empty: none
  std::vector<RowLogitEdits> row_edits;

  int rows() const { return static_cast<int>(tokens.size()); }
};

struct RunnerOutput {
  // Logits of the rows without choices, row-major [rows, vocabulary], f32.
  std::vector<float> values;
  int vocabulary = 0;
  // Per entry of logit_rows, the tokens that row_outputs requests, if the runner samples. Empty for
  // a row with a NaN logit. Empty as a whole if no row has any.
  std::vector<std::vector<TokenProbability>> choices;
  // Per entry of logit_rows, if its metadata requests them and it has choices; otherwise token is
  // -1. Empty if no row has any.
  std::vector<TokenLogprobs> logprobs;
  // If requested: hidden states of the same rows after the final norm, row-major
  // [logit_rows.size(), RunnerLimits::hidden].
  std::vector<float> hidden;

  // The i-th row of `values`.
  const float* row(int i) const { return values.data() + static_cast<size_t>(i) * vocabulary; }
};

// Limits that the engine must respect.
struct RunnerLimits {
  int vocabulary = 0;
  int kv_slots = 0;
  int max_rows = 0;            // rows of one batch
  int max_sequences = 0;       // sequences of one batch
  int max_context_slots = 0;   // sequence_slots of one batch
  int max_ancestor_slots = 0;  // ancestor_slots of one batch
  int max_positions = 0;       // longest sequence
  int adapters = 0;            // number of LoRA adapters
  int hidden = 0;              // size of a hidden state; 0: not available
  int concurrent_steps = 1;    // steps in flight at most
};

class ModelRunner {
 public:
  virtual ~ModelRunner() = default;

  virtual RunnerLimits limits() const = 0;

  // Runs one step; blocks. The logits of a row depend bit for bit on its tokens, their positions
  // and its adapter only, not on the batch (batch invariance). Returns InvalidArgument if the batch
  // exceeds a limit or an index is out of range; the KV cache is unchanged then.
  virtual absl::Status Step(const RunnerBatch& batch, RunnerOutput* logits) = 0;

  // A step in two halves, if limits().concurrent_steps is more than 1. Begin does not wait for the
  // outputs; End waits for the oldest step in flight. The results are as if each step had run
  // before the next one started: a later step sees what earlier ones wrote, and may write where
  // they read. If Begin fails, no step was started; an error of End concerns that step only.
  // REQUIRES: no call of Step between a Begin and its End.
  virtual absl::Status Begin(const RunnerBatch& batch) {
    return absl::UnimplementedError("this model runs one step at a time");
  }
  virtual absl::Status End(RunnerOutput* logits) {
    return absl::UnimplementedError("this model runs one step at a time");
  }

  // Called before every step by the thread that steps. A changed number means that the content of
  // the KV cache is lost, for example because the model was loaded again elsewhere.
  virtual uint64_t cache_generation() { return 0; }

  // Called by the same thread. True if the model is to move: it is loaded elsewhere, too, and the
  // next call of cache_generation takes it there. Requests that run may end here before that call.
  virtual bool is_to_move() { return false; }

  // Callable from any thread: the results of steps in flight are not needed, and no step follows. A
  // step that waits for another machine may stop waiting and return Unavailable.
  virtual void Abandon() {}
};

}  // namespace espalier
