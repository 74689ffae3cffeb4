#include "serving/runner/serving_proto.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "serving/sampling/distribution.h"

namespace espalier {
namespace {

constexpr int64_t kMostWeights = int64_t{1} << 31;  // rows or columns of a matrix

using Field = google::protobuf::RepeatedField<int32_t>;

// The arrays of a batch with their fields.
template <typename Batch, typename Visitor>
void EachArray(Batch& batch, Visitor&& visit) {
  visit(batch.tokens, &v1::ServingStep::tokens, &v1::ServingStep::mutable_tokens);
  visit(batch.positions, &v1::ServingStep::positions, &v1::ServingStep::mutable_positions);
  visit(batch.slots, &v1::ServingStep::slots, &v1::ServingStep::mutable_slots);
  visit(batch.row_sequence, &v1::ServingStep::row_sequence, &v1::ServingStep::mutable_row_sequence);
  visit(batch.row_prefix, &v1::ServingStep::row_prefix, &v1::ServingStep::mutable_row_prefix);
  visit(batch.ancestor_start, &v1::ServingStep::ancestor_start,
        &v1::ServingStep::mutable_ancestor_start);
  visit(batch.ancestor_slots, &v1::ServingStep::ancestor_slots,
        &v1::ServingStep::mutable_ancestor_slots);
  visit(batch.sequence_start, &v1::ServingStep::sequence_start,
        &v1::ServingStep::mutable_sequence_start);
  visit(batch.sequence_slots, &v1::ServingStep::sequence_slots,
        &v1::ServingStep::mutable_sequence_slots);
  visit(batch.logit_rows, &v1::ServingStep::logit_rows, &v1::ServingStep::mutable_logit_rows);
  visit(batch.row_adapter, &v1::ServingStep::row_adapter, &v1::ServingStep::mutable_row_adapter);
  visit(batch.row_outputs, &v1::ServingStep::row_outputs, &v1::ServingStep::mutable_row_outputs);
  visit(batch.next_prompt_tokens, &v1::ServingStep::next_prompt_tokens,
        &v1::ServingStep::mutable_next_prompt_tokens);
}

using Getter = const Field& (v1::ServingStep::*)() const;
using Mutable = Field* (v1::ServingStep::*)();

// The sets of tokens of one step, each of them once: rows of a tree share them.
class SetWriter {
 public:
  explicit SetWriter(v1::ServingStep* step) : step_(step) {}

  int32_t NumberOf(const TokenBitmaskRef& set) {
    if (set == nullptr) return 0;
    const auto [it, is_new] = numbers_.emplace(set.get(), step_->token_sets_size() + 1);
    if (is_new) {
      std::string* bytes = step_->add_token_sets();
      bytes->resize(set->size() * sizeof(uint64_t));
      for (size_t i = 0; i < bytes->size(); ++i) {
        (*bytes)[i] = static_cast<char>((*set)[i / 8] >> (i % 8 * 8));
      }
    }
    return it->second;
  }

 private:
  v1::ServingStep* step_;
  std::map<const TokenBitmask*, int32_t> numbers_;
};

class SetReader {
 public:
  explicit SetReader(const v1::ServingStep& step) {
    for (const std::string& bytes : step.token_sets()) {
      TokenBitmask set((bytes.size() + 7) / 8, 0);
      for (size_t i = 0; i < bytes.size(); ++i) {
        set[i / 8] |= uint64_t{static_cast<uint8_t>(bytes[i])} << (i % 8 * 8);
      }
      sets_.push_back(std::make_shared<const TokenBitmask>(std::move(set)));
    }
  }

  // False: there is no such set.
  bool Take(int32_t number, TokenBitmaskRef* set) const {
    if (number < 0 || number > static_cast<int32_t>(sets_.size())) return false;
    *set = number == 0 ? nullptr : sets_[number - 1];
    return true;
  }

 private:
  std::vector<TokenBitmaskRef> sets_;
};

template <typename Edits>
void SetPenalties(const std::vector<TokenPenalty>& penalties, Edits* to) {
  for (const TokenPenalty& penalty : penalties) {
    to->add_penalty_tokens(penalty.token);
    to->add_penalties(penalty.less);
  }
}

template <typename Edits>
bool TakePenalties(const Edits& from, std::vector<TokenPenalty>* to) {
  if (from.penalty_tokens_size() != from.penalties_size()) return false;
  for (int i = 0; i < from.penalties_size(); ++i) {
    to->push_back({from.penalty_tokens(i), from.penalties(i)});
  }
  return true;
}

void SetEdits(const SequenceLogitEdits& edits, SetWriter& sets, v1::SequenceLogitEdits* to) {
  to->set_permitted(sets.NumberOf(edits.permitted));
  for (const auto& [token, bias] : edits.biases) {
    to->add_bias_tokens(token);
    to->add_biases(bias);
  }
  to->set_repetition_penalty(edits.repetition_penalty);
  SetPenalties(edits.penalties, to);
}

bool TakeEdits(const v1::SequenceLogitEdits& from, const SetReader& sets, SequenceLogitEdits* to) {
  if (from.bias_tokens_size() != from.biases_size()) return false;
  for (int i = 0; i < from.biases_size(); ++i) {
    to->biases.emplace_back(from.bias_tokens(i), from.biases(i));
  }
  to->repetition_penalty = from.repetition_penalty();
  return sets.Take(from.permitted(), &to->permitted) && TakePenalties(from, &to->penalties);
}

bool TakeEdits(const v1::RowLogitEdits& from, const SetReader& sets, RowLogitEdits* to) {
  to->forbidden.assign(from.forbidden().begin(), from.forbidden().end());
  return sets.Take(from.permitted(), &to->permitted) && TakePenalties(from, &to->penalties);
}

}  // namespace

void SetWeights(const WeightMap& map, v1::StartServingRequest* request) {
  for (const auto& [parameter, source] : map.sources) {
    v1::Weight* weight = request->add_weights();
    weight->set_parameter(parameter);
    weight->set_add(source.add);
    weight->set_bits(source.bits);
    weight->set_out(source.out);
    weight->set_in(source.in);
    weight->set_packed(source.packed);
    for (const WeightSlice& piece : source.pieces) {
      v1::WeightSlice* to = weight->add_pieces();
      to->set_tensor(piece.tensor);
      to->mutable_dims()->Add(piece.dims.begin(), piece.dims.end());
      to->set_transposed(piece.transposed);
      to->set_begin(piece.begin);
      to->set_end(piece.end);
    }
  }
  request->mutable_ignored_tensors()->Add(map.ignored.begin(), map.ignored.end());
}

absl::StatusOr<WeightMap> WeightsOf(const v1::StartServingRequest& request) {
  WeightMap map;
  for (const v1::Weight& weight : request.weights()) {
    const auto bad = [&](const auto&... parts) {
      return absl::InvalidArgumentError(
          absl::StrCat("weights of parameter '", weight.parameter(), "': ", parts...));
    };
    WeightSource source;
    source.add = weight.add();
    source.bits = weight.bits();
    source.out = weight.out();
    source.in = weight.in();
    source.packed = weight.packed();
    if (source.bits != 0 && source.bits != 4 && source.bits != 8) {
      return bad("bits is ", source.bits, "; accepted: 0, 4 and 8");
    }
    if (source.bits != 0 && (source.out < 1 || source.out > kMostWeights || source.in < 1 ||
                             source.in > kMostWeights)) {
      return bad("a matrix of ", source.out, " x ", source.in);
    }
    for (const v1::WeightSlice& from : weight.pieces()) {
      WeightSlice piece;
      piece.tensor = from.tensor();
      piece.dims.assign(from.dims().begin(), from.dims().end());
      piece.transposed = from.transposed();
      piece.begin = from.begin();
      piece.end = from.end();
      // A scalar has one row.
      const size_t rows = piece.transposed ? 1 : 0;
      const int64_t most = piece.dims.empty() ? 1 : rows < piece.dims.size() ? piece.dims[rows] : 0;
      if ((piece.transposed && piece.dims.size() != 2) || piece.begin < 0 ||
          piece.end < piece.begin || piece.end > most) {
        return bad("rows [", piece.begin, ", ", piece.end, ") of tensor '", piece.tensor, "' ",
                   ToString(piece.dims));
      }
      source.pieces.push_back(std::move(piece));
    }
    if (source.packed && (source.bits == 0 || source.pieces.size() != 1 ||
                          source.pieces[0].dims.size() != 2 || source.pieces[0].transposed)) {
      return bad("a packed matrix of ", source.bits, " bits in ", source.pieces.size(), " pieces");
    }
    if (!map.sources.emplace(weight.parameter(), std::move(source)).second) {
      return bad("they come twice");
    }
  }
  map.ignored.assign(request.ignored_tensors().begin(), request.ignored_tensors().end());
  return map;
}

void SetAdapters(const AdapterParameters& adapters, v1::StartServingRequest* request) {
  for (const auto& [parameter, matrices] : adapters) {
    v1::AdapterParameter* to = request->add_adapters();
    to->set_parameter(parameter);
    for (const AdapterMatrix& matrix : matrices) {
      v1::AdapterMatrix* part = to->add_matrices();
      part->set_tensor(matrix.tensor);
      part->set_scale(matrix.scale);
      for (const auto& [begin, end] : matrix.rows) {
        v1::AdapterMatrix::Rows* rows = part->add_rows();
        rows->set_begin(begin);
        rows->set_end(end);
      }
    }
  }
}

absl::StatusOr<AdapterParameters> AdaptersOf(const v1::StartServingRequest& request) {
  AdapterParameters adapters;
  for (const v1::AdapterParameter& parameter : request.adapters()) {
    std::vector<AdapterMatrix> matrices;
    for (const v1::AdapterMatrix& from : parameter.matrices()) {
      AdapterMatrix& matrix = matrices.emplace_back();
      matrix.tensor = from.tensor();
      matrix.scale = from.scale();
      for (const auto& rows : from.rows()) matrix.rows.emplace_back(rows.begin(), rows.end());
    }
    if (!adapters.emplace(parameter.parameter(), std::move(matrices)).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("adapters of parameter '", parameter.parameter(), "' come twice"));
    }
  }
  return adapters;
}

v1::ServingLimits ToProto(const RunnerLimits& limits, int max_output_rows) {
  v1::ServingLimits to;
  to.set_vocabulary(limits.vocabulary);
  to.set_kv_slots(limits.kv_slots);
  to.set_max_rows(limits.max_rows);
  to.set_max_output_rows(max_output_rows);
  to.set_max_sequences(limits.max_sequences);
  to.set_max_context_slots(limits.max_context_slots);
  to.set_max_ancestor_slots(limits.max_ancestor_slots);
  to.set_max_positions(limits.max_positions);
  to.set_adapters(limits.adapters);
  to.set_hidden(limits.hidden);
  return to;
}

absl::StatusOr<RunnerLimits> LimitsOf(const v1::ServingLimits& limits) {
  RunnerLimits to;
  const struct {
    const char* name;
    int32_t value;
    int* to;
    int least = 1;
  } fields[] = {{"vocabulary", limits.vocabulary(), &to.vocabulary},
                {"kv_slots", limits.kv_slots(), &to.kv_slots},
                {"max_rows", limits.max_rows(), &to.max_rows},
                {"max_sequences", limits.max_sequences(), &to.max_sequences},
                {"max_context_slots", limits.max_context_slots(), &to.max_context_slots},
                {"max_ancestor_slots", limits.max_ancestor_slots(), &to.max_ancestor_slots},
                {"max_positions", limits.max_positions(), &to.max_positions},
                {"max_output_rows", limits.max_output_rows(), nullptr},
                {"adapters", limits.adapters(), &to.adapters, 0},
                {"hidden", limits.hidden(), &to.hidden, 0}};
  for (const auto& field : fields) {
    if (field.value < field.least) {
      return absl::InvalidArgumentError(absl::StrCat("limits.", field.name, " is ", field.value,
                                                     "; accepted: at least ", field.least));
    }
    if (field.to != nullptr) *field.to = field.value;
  }
  return to;
}

void SetBatch(const RunnerBatch& batch, v1::ServingStep* step) {
  EachArray(batch, [step](const std::vector<int32_t>& from, Getter, Mutable field) {
    (step->*field)()->Assign(from.begin(), from.end());
  });
  step->set_wants_hidden(batch.wants_hidden);
  step->clear_sequence_sampling();
  step->clear_row_edits();
  step->clear_token_sets();
  SetWriter sets(step);
  for (const SamplingMetadata& metadata : batch.sequence_sampling) {
    v1::SamplingMetadata* to = step->add_sequence_sampling();
    to->set_temperature(metadata.sampling.temperature);
    to->set_top_p(metadata.sampling.top_p);
    to->set_top_k(metadata.sampling.top_k);
    to->set_seed(metadata.sampling.seed);
    to->set_min_p(metadata.sampling.min_p);
    to->set_typical_p(metadata.sampling.typical_p);
    to->set_coupled(metadata.coupled);
    if (metadata.edits) SetEdits(*metadata.edits, sets, to->mutable_edits());
    if (metadata.logprobs >= 0) to->set_logprobs(metadata.logprobs);
    if (metadata.prompt_logprobs >= 0) to->set_prompt_logprobs(metadata.prompt_logprobs);
  }
  for (const RowLogitEdits& edits : batch.row_edits) {
    v1::RowLogitEdits* to = step->add_row_edits();
    to->set_permitted(sets.NumberOf(edits.permitted));
    to->mutable_forbidden()->Add(edits.forbidden.begin(), edits.forbidden.end());
    SetPenalties(edits.penalties, to);
  }
}

absl::Status TakeBatch(const v1::ServingStep& step, RunnerBatch* batch) {
  EachArray(*batch, [&step](std::vector<int32_t>& to, Getter field, Mutable) {
    const Field& from = (step.*field)();
    to.assign(from.begin(), from.end());
  });
  batch->wants_hidden = step.wants_hidden();
  batch->sequence_sampling.clear();
  batch->row_edits.clear();
  const SetReader sets(step);
  const absl::Status torn = absl::InvalidArgumentError("the step's edits are torn");
  for (const v1::SamplingMetadata& from : step.sequence_sampling()) {
    SamplingMetadata& metadata = batch->sequence_sampling.emplace_back();
    metadata.sampling = {.temperature = from.temperature(),
                         .top_p = from.top_p(),
                         .top_k = from.top_k(),
                         .seed = from.seed(),
                         .min_p = from.min_p(),
                         .typical_p = from.typical_p()};
    metadata.coupled = from.coupled();
    metadata.logprobs = from.has_logprobs() ? from.logprobs() : -1;
    metadata.prompt_logprobs = from.has_prompt_logprobs() ? from.prompt_logprobs() : -1;
    if (!from.has_edits()) continue;
    const auto edits = std::make_shared<SequenceLogitEdits>();
    if (!TakeEdits(from.edits(), sets, edits.get())) return torn;
    metadata.edits = edits;
  }
  for (const v1::RowLogitEdits& from : step.row_edits()) {
    if (!TakeEdits(from, sets, &batch->row_edits.emplace_back())) return torn;
  }
  return absl::OkStatus();
}

void SetChoices(const RunnerOutput& logits, v1::ServingResult* result) {
  for (const std::vector<TokenProbability>& row : logits.choices) {
    result->add_choice_counts(static_cast<int32_t>(row.size()));
    for (const TokenProbability& choice : row) {
      result->add_choice_tokens(choice.token);
      result->add_choice_probabilities(choice.probability);
    }
  }
  for (const TokenLogprobs& row : logits.logprobs) {
    v1::RowLogprobs* to = result->add_logprobs();
    to->set_token(row.token);
    to->set_logprob(row.logprob);
    to->set_rank(row.rank);
    for (const auto& [token, logprob] : row.top) {
      to->add_top_tokens(token);
      to->add_top_logprobs(logprob);
    }
  }
}

bool TakeChoices(const v1::ServingResult& result, RunnerOutput* logits) {
  logits->choices.clear();
  logits->logprobs.clear();
  for (const v1::RowLogprobs& from : result.logprobs()) {
    TokenLogprobs& row = logits->logprobs.emplace_back();
    row.token = from.token();
    row.logprob = from.logprob();
    row.rank = from.rank();
    if (from.top_tokens_size() != from.top_logprobs_size()) return false;
    for (int i = 0; i < from.top_tokens_size(); ++i) {
      row.top.emplace_back(from.top_tokens(i), from.top_logprobs(i));
    }
  }
  int at = 0;
  for (const int32_t count : result.choice_counts()) {
    if (count < 0 || count > result.choice_tokens_size() - at ||
        count > result.choice_probabilities_size() - at) {
      return false;
    }
    std::vector<TokenProbability>& row = logits->choices.emplace_back();
    for (const int end = at + count; at < end; ++at) {
      row.push_back({result.choice_tokens(at), result.choice_probabilities(at)});
    }
  }
  return at == result.choice_tokens_size() && at == result.choice_probabilities_size();
}

}  // namespace espalier
