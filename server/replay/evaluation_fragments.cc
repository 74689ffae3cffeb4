#include "server/replay/evaluation_fragments.h"

#include <iterator>

#include "absl/strings/str_cat.h"
#include "ops/graph/graph_proto.h"
#include "ops/probe/elements.h"
#include "ops/tensor/view.h"

namespace espalier {
namespace {

constexpr int64_t kMostRowsBytes = int64_t{1} << 30;

absl::Status OfAnswer(const std::string& name, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("graph '", name, "': ", what));
}

}  // namespace

absl::StatusOr<EvaluationFragments> EvaluationFragments::Make(
    const OpRegistry& registry, const std::vector<GraphFragment>& fragments,
    const InputOf& input_of, const EvaluatedBatches& batches) {
  EvaluationFragments made;
  made.batches_ = batches;
  const auto type_of = [&](const ProbeExpression& source) -> absl::StatusOr<TensorType> {
    const absl::StatusOr<EvaluationInput> input = input_of(source);
    if (!input.ok()) return input.status();
    return input->batch;
  };
  const auto twice_of = [&](const ProbeExpression& source) -> absl::StatusOr<TensorType> {
    const absl::StatusOr<EvaluationInput> input = input_of(source);
    if (!input.ok()) return input.status();
    if (input->twice.has_value()) return TensorType{input->batch.dtype, *input->twice};
    return absl::InvalidArgumentError(
        absl::StrCat("'", ToString(source), "' is for batches of ", batches.size, " only"));
  };
  const int64_t left = batches.examples - (batches.count - 1) * batches.size;
  const auto last_of = [&](const ProbeExpression& source) -> absl::StatusOr<TensorType> {
    absl::StatusOr<EvaluationInput> input = input_of(source);
    if (!input.ok()) return input.status();
    if (input->layout == BatchLayout::kNotKnown) {
      return absl::InvalidArgumentError(
          absl::StrCat("padding of '", ToString(source), "' cannot be told from examples"));
    }
    if (input->layout == BatchLayout::kRows) {
      int64_t& rows = input->batch.dims[0];
      rows = rows / batches.size * left;
    }
    return input->batch;
  };
  absl::StatusOr<GraphFragments> whole = GraphFragments::Make(registry, fragments, type_of);
  if (!whole.ok()) return whole.status();
  made.whole_ = *std::move(whole);
  for (const ProbeExpression& source : made.whole_.sources()) {
    const absl::StatusOr<EvaluationInput> input = input_of(source);
    if (!input.ok()) return input.status();
    if (input->layout != BatchLayout::kRows) continue;
    made.rows_per_example_[TargetsToString(source)] = input->batch.dims[0] / batches.size;
  }
  std::vector<GraphFragment> with_last;
  for (const GraphFragment& fragment : fragments) {
    const absl::StatusOr<GraphFragments> once = GraphFragments::Make(registry, {fragment}, type_of);
    if (!once.ok()) return once.status();
    const absl::StatusOr<GraphFragments> twice =
        GraphFragments::Make(registry, {fragment}, twice_of);
    bool last = !batches.has_padding();
    if (!last) {
      const absl::Status s = GraphFragments::Make(registry, {fragment}, last_of).status();
      last = s.ok();
      if (!last && batches.count == 1) {
        return absl::InvalidArgumentError(
            absl::StrCat(s.message(), "; the ", batches.examples,
                         " examples do not fill a batch of ", batches.size,
                         ": leave the first dimension of the graph's inputs open, or evaluate more "
                         "examples"));
      }
      if (last) with_last.push_back(fragment);
    }
    const auto answers = once->answers();
    for (size_t i = 0; i < answers.size(); ++i) {
      const auto& [name, type] = answers[i];
      if (!last) made.without_last_.push_back(name);
      Answer answer;
      answer.type = type;
      answer.over = IsFloat(type.dtype) ? Over::kMean : Over::kSum;
      Dims rows = type.dims;
      if (!rows.empty()) rows[0] *= 2;
      if (!type.dims.empty() && !twice.ok()) {
        return OfAnswer(
            name, absl::StrCat("whether ", ToString(type),
                               " has rows of examples cannot be told: ", twice.status().message(),
                               "; leave the first dimension of its inputs open"));
      }
      const Dims of_twice = twice.ok() ? twice->answers()[i].second.dims : type.dims;
      if (of_twice != type.dims) {
        if (of_twice != rows || type.dims[0] % batches.size != 0) {
          return OfAnswer(
              name,
              absl::StrCat("it is ", ToString(type), " for ", batches.size, " examples and ",
                           ToString(TensorType{type.dtype, of_twice}), " for ", 2 * batches.size,
                           "; accepted: rows of examples, or the same dimensions "
                           "for each batch"));
        }
        answer.over = Over::kRows;
        answer.rows_per_example = type.dims[0] / batches.size;
        answer.type.dims[0] = answer.rows_per_example *
                              (last ? batches.examples : (batches.count - 1) * batches.size);
        if (answer.type.bytes() > kMostRowsBytes) {
          return OfAnswer(name, absl::StrCat("all examples have ", answer.type.bytes(),
                                             " bytes of it, more than ", kMostRowsBytes,
                                             "; let the graph reduce them"));
        }
      } else {
        answer.type.dtype = answer.over == Over::kMean ? DType::kF32 : DType::kI64;
      }
      made.answers_.emplace_back(name, std::move(answer));
    }
  }
  absl::StatusOr<GraphFragments> last = GraphFragments::Make(registry, with_last, last_of);
  if (!last.ok()) return last.status();
  made.last_ = *std::move(last);
  return made;
}

std::vector<std::pair<std::string, TensorType>> EvaluationFragments::answers() const {
  std::vector<std::pair<std::string, TensorType>> all;
  for (const auto& [name, answer] : answers_) all.emplace_back(name, answer.type);
  return all;
}

EvaluatedFragments::EvaluatedFragments(const EvaluationFragments* fragments)
    : fragments_(*fragments) {}

absl::Status EvaluatedFragments::Add(int64_t batch, std::map<std::string, v1::TensorValue> given) {
  const EvaluatedBatches& batches = fragments_.batches_;
  if (batch != next_++) {
    return absl::InternalError(
        absl::StrCat("batch ", batch, " of an evaluation came before batch ", next_ - 1));
  }
  const bool cut = batches.has_padding() && batch == batches.count - 1;
  const int64_t examples = cut ? batches.examples - batch * batches.size : batches.size;
  if (cut) {
    for (const auto& [name, rows] : fragments_.rows_per_example_) {
      v1::TensorValue& tensor = given.at(name);
      const auto bytes_of_row = tensor.data().size() / static_cast<size_t>(tensor.dims(0));
      tensor.mutable_data()->resize(bytes_of_row * static_cast<size_t>(rows * examples));
      tensor.set_dims(0, rows * examples);
    }
  }
  auto answers = (cut ? fragments_.last_ : fragments_.whole_).Evaluate(given);
  if (!answers.ok()) return answers.status();
  std::map<std::string, v1::TensorValue> by_name(std::make_move_iterator(answers->begin()),
                                                 std::make_move_iterator(answers->end()));
  for (const auto& [name, answer] : fragments_.answers_) {
    const auto found = by_name.find(name);
    if (found == by_name.end()) continue;  // it leaves the last batch out
    v1::TensorValue& tensor = found->second;
    Sum& sum = sums_[name];
    const bool rows = answer.over == EvaluationFragments::Over::kRows;
    const Dims dims(tensor.dims().begin(), tensor.dims().end());
    Dims expected = answer.type.dims;
    if (rows) expected[0] = answer.rows_per_example * examples;
    if (dims != expected) {
      return absl::InternalError(absl::StrCat("graph '", name, "': it is ", ToString(dims), " for ",
                                              examples, " examples, not ", ToString(expected)));
    }
    if (rows) {
      sum.rows.append(tensor.data());
      continue;
    }
    const TensorView view{tensor.mutable_data()->data(),
                          TensorSpec::Whole({FromProto(tensor.dtype()), dims})};
    const auto weight = static_cast<double>(examples);
    sum.weight += weight;
    size_t i = 0;
    if (answer.over == EvaluationFragments::Over::kMean) {
      sum.weighted.resize(static_cast<size_t>(view.num_elements()));
      probe::ForElements(view, [&](double element) { sum.weighted[i++] += weight * element; });
    } else {
      sum.counted.resize(static_cast<size_t>(view.num_elements()));
      probe::ForElements(
          view, [&](double element) { sum.counted[i++] += static_cast<int64_t>(element); });
    }
  }
  return absl::OkStatus();
}

std::vector<std::pair<std::string, v1::TensorValue>> EvaluatedFragments::Finish() {
  std::vector<std::pair<std::string, v1::TensorValue>> finished;
  for (const auto& [name, answer] : fragments_.answers_) {
    Sum& sum = sums_[name];
    v1::TensorValue& tensor = finished.emplace_back(name, v1::TensorValue()).second;
    tensor.set_dtype(ToProto(answer.type.dtype));
    tensor.mutable_dims()->Assign(answer.type.dims.begin(), answer.type.dims.end());
    switch (answer.over) {
      case EvaluationFragments::Over::kRows:
        tensor.set_data(std::move(sum.rows));
        break;
      case EvaluationFragments::Over::kMean: {
        std::vector<float> means;
        means.reserve(sum.weighted.size());
        for (const double weighted : sum.weighted) {
          means.push_back(static_cast<float>(weighted / sum.weight));
        }
        tensor.set_data(means.data(), means.size() * sizeof(float));
        break;
      }
      case EvaluationFragments::Over::kSum:
        tensor.set_data(sum.counted.data(), sum.counted.size() * sizeof(int64_t));
        break;
    }
  }
  return finished;
}

}  // namespace espalier
