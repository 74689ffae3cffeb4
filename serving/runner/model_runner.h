// What the serving engine needs from whoever runs the model. worker/ implements it with the same
// executor that trains; tests implement it with small functions.
//
// KV cache: a pool of `kv_slots` slots per layer, each holding the K and V of one token. The engine
// owns the numbering (serving/kv); a sequence is an ordered list of slots. A token of a draft tree
// is written into a free slot and becomes part of its sequence, if accepted, by appending that
// slot's number to the list: nothing is copied.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "serving/sampling/sampler.h"
#include "serving/sampling/logit_edits.h"
#include "serving/sampling/logprobs.h"

namespace espalier {

// How a sequence's next tokens are chosen.
struct SamplingMetadata {
  SamplingParameters sampling;  // greedy, unless it says something else
  bool coupled = false;    // see SampleToken
  // What is done to logits before; null: nothing.
  std::shared_ptr<const SequenceLogitEdits> edits;
  // Most probable tokens that are reported beside one that is chosen, and beside one that follows
  // in the prompt; -1: no log-probabilities are.
  int logprobs = -1;
  int prompt_logprobs = -1;

  bool plain() const {
    return sampling == SamplingParameters() && !coupled && edits == nullptr && logprobs < 0 &&
           prompt_logprobs < 0;
  }
};

// One step over rows of any mix of sequences: prompt chunks, single tokens, tree nodes.
// Row r sees, in this order: the first row_prefix[r] slots of its sequence, then its ancestors. Its
// own slot is among them (the last one): K and V of all rows are written before any row attends.
struct RunnerBatch {
  // Per row.
  std::vector<int32_t> tokens;
  std::vector<int32_t> positions;     // for rotary embedding: depth in the sequence, never the slot
  std::vector<int32_t> slots;         // where this row's K and V go; all different
  std::vector<int32_t> row_sequence;  // index into the sequences below
  std::vector<int32_t> row_prefix;
  std::vector<int32_t> ancestor_start;  // rows + 1 offsets into ancestor_slots
  std::vector<int32_t> ancestor_slots;  // tree ancestors root first, the row's own slot last; empty
                                        // for rows that lie in the sequence itself
  std::vector<int32_t> row_adapter;     // index of a low-rank adapter, -1: none; empty: all none
  // Per sequence.
  std::vector<int32_t> sequence_start;   // sequences + 1 offsets into sequence_slots
  std::vector<int32_t> sequence_slots;   // in order of position, this step's own rows included
  std::vector<SamplingMetadata> sequence_sampling;  // empty: all greedy

  std::vector<int32_t> logit_rows;  // rows whose logits are wanted, ascending
  bool wants_hidden = false;        // their hidden states too
  // Of each of them: all its logits, or what comes of them (RunnerOutput::choices): its token by
  // the sequence's rule, the log-probability of the token that follows it in the prompt, or so many
  // of the best ones. Empty: all logits of all.
  std::vector<int32_t> row_outputs;
  static constexpr int32_t kLogits = 0, kToken = -1, kPromptLogprob = -2;
  std::vector<int32_t> next_prompt_tokens;   // that token, of each of them; empty: nobody row_outputs for it
  std::vector<RowLogitEdits> row_edits;  // of each, besides its rule's; empty: none has any

  int rows() const { return static_cast<int>(tokens.size()); }
};

struct RunnerOutput {
  // Row-major [rows, vocabulary], f32: of the wanted rows that have no choices.
  std::vector<float> values;
  int vocabulary = 0;
  // Of each wanted row, if the runner gives what is wished (see row_outputs.h); one with a logit that is
  // no number has none. Empty: no row has.
  std::vector<std::vector<TokenProbability>> choices;
  // Of each wanted row, where its rule says so and it has a choice; else their token is -1. Empty:
  // no row has any.
  std::vector<TokenLogprobs> logprobs;
  // If wanted: the last layer's states of the same rows, as the final norm leaves them, row-major
  // [logit_rows.size(), RunnerLimits::hidden].
  std::vector<float> hidden;

  // The i-th of those in `values`.
  const float* row(int i) const { return values.data() + static_cast<size_t>(i) * vocabulary; }
};

// Sizes that the engine must respect.
struct RunnerLimits {
  int vocabulary = 0;
  int kv_slots = 0;
  int max_rows = 0;            // rows of one batch
  int max_sequences = 0;       // sequences of one batch
  int max_context_slots = 0;   // sequence_slots of one batch
  int max_ancestor_slots = 0;  // ancestor_slots of one batch
  int max_positions = 0;       // longest sequence
  int adapters = 0;            // that rows can choose from
  int hidden = 0;              // size of a hidden state; 0: none can be had
  int concurrent_steps = 1;       // that can be begun before the first of them has ended
};

class ModelRunner {
 public:
  virtual ~ModelRunner() = default;

  virtual RunnerLimits limits() const = 0;

  // Runs one step; blocks. A row's logits depend bit for bit on its tokens, their positions and
  // their adapter alone, not on the batch it rides in. InvalidArgument if the batch breaks a limit
  // or an index is out of range; the KV cache is then unchanged.
  virtual absl::Status Step(const RunnerBatch& batch, RunnerOutput* logits) = 0;

  // A step in two halves, where limits().concurrent_steps is more than 1: the stages of a pipeline
  // then work on several steps. Begin does not wait for what the step gives; End waits for the
  // oldest one that was begun and has not ended. All is as if each step had run before the next was
  // begun: a later one sees what earlier ones wrote, and may write where they read. After an error
  // of Begin nothing was begun; an error of End is of that step alone, as Step's. No Step in
  // between.
  virtual absl::Status Begin(const RunnerBatch& batch) {
    return absl::UnimplementedError("this model runs one step at a time");
  }
  virtual absl::Status End(RunnerOutput* logits) {
    return absl::UnimplementedError("this model runs one step at a time");
  }

  // Asked before every step, by whoever steps. Another number than before: what the KV cache held
  // is lost, as when the model had to be loaded again somewhere else.
  virtual uint64_t cache_generation() { return 0; }

  // From any thread: nobody needs the steps under way, and none will follow. One that waits for
  // somebody else need not, and is then Unavailable.
  virtual void Abandon() {}
};

}  // namespace espalier
