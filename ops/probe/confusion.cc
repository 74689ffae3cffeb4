// Confusion matrices of classes that ranks found, or of logits.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/graph/graph_proto.h"
#include "ops/probe/elements.h"
#include "ops/probe/reduce.h"

namespace espalier {
namespace {

constexpr int64_t kMostClasses = 8192;  // a matrix of 512 MiB

absl::Status BadConfusion(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("confusion: ", what));
}

struct Predicted {
  int64_t of = -1;  // class; -1: none yet
  double logit = 0;
};

// Takes a logit into account: the greatest counts, the first of equal ones, NaN before all.
void Consider(int64_t of, double logit, Predicted* best) {
  const bool nan = std::isnan(logit), best_nan = std::isnan(best->logit);
  const bool above = nan != best_nan                  ? nan
                     : (!nan && logit != best->logit) ? logit > best->logit
                                                      : of < best->of;
  if (best->of < 0 || above) *best = {of, logit};
}

absl::StatusOr<std::vector<Predicted>> PredictedClasses(const std::vector<v1::ProbePart>& parts,
                                                        int64_t rows, int64_t classes) {
  std::vector<Predicted> best(static_cast<size_t>(rows));
  const Dims global(parts[0].dims().begin(), parts[0].dims().end());
  for (const v1::ProbePart& part : parts) {
    for (const v1::ProbePart::Box& box : part.boxes()) {
      const Dims dims(box.values().dims().begin(), box.values().dims().end());
      const int64_t elements = NumElements(dims);
      if (elements == 0) continue;
      const bool found = box.values().dtype() == v1::I64 && dims.back() == classes;
      const DType dtype = FromProto(box.values().dtype());
      const int64_t values = found ? elements / classes : elements;
      if ((!found && box.values().dtype() != parts[0].dtype()) ||
          static_cast<int64_t>(box.values().data().size()) !=
              values * static_cast<int64_t>(SizeOf(dtype))) {
        return BadConfusion("a part of the logits has another size than its dimensions say");
      }
      std::vector<double> aligned((box.values().data().size() + 7) / 8);
      std::memcpy(aligned.data(), box.values().data().data(), box.values().data().size());
      const TensorView view{aligned.data(), TensorSpec::Whole({dtype, {values}})};
      const probe::GlobalIndex index({box.offset().begin(), box.offset().end()}, dims, global);
      int64_t i = 0;
      probe::ForElements(view, [&](double value) {
        const int64_t at = index.Of(found ? i * classes : i);
        ++i;
        Predicted* row = &best[static_cast<size_t>(at / classes)];
        if (found) {
          const bool known = value >= 0 && value < static_cast<double>(classes);
          row->of = known ? static_cast<int64_t>(value) : -1;
        } else {
          Consider(at % classes, value, row);
        }
      });
    }
  }
  for (const Predicted& row : best) {
    if (row.of < 0 || row.of >= classes) return BadConfusion("a row of the logits has no class");
  }
  return best;
}

}  // namespace

absl::Status CheckConfusion(const TensorType& logits, const TensorType& labels) {
  if (logits.dims.empty() || logits.dims.back() < 1 || !IsFloat(logits.dtype)) {
    return BadConfusion(absl::StrCat("logits are ", ToString(logits),
                                     "; expected floating-point ones with the classes last"));
  }
  const int64_t classes = logits.dims.back();
  if (classes > kMostClasses) {
    return BadConfusion(absl::StrCat(classes, " classes; the most are ", kMostClasses));
  }
  const Dims expected(logits.dims.begin(), logits.dims.end() - 1);
  Dims with_one = expected;
  with_one.push_back(1);
  if (!IsInteger(labels.dtype) || (labels.dims != expected && labels.dims != with_one)) {
    return BadConfusion(absl::StrCat("labels are ", ToString(labels), "; expected whole numbers ",
                                     ToString(expected), " for logits ", ToString(logits.dims)));
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::ProbeValue> FinishConfusion(std::vector<v1::ProbePart> logits,
                                               std::vector<v1::ProbePart> labels) {
  if (absl::Status s = probe::CheckParts(logits, /*adds_up=*/false); !s.ok()) return s;
  if (absl::Status s = probe::CheckParts(labels, /*adds_up=*/false); !s.ok()) return s;
  const Dims global(logits[0].dims().begin(), logits[0].dims().end());
  const Dims rows_dims(labels[0].dims().begin(), labels[0].dims().end());
  const DType label_type = FromProto(labels[0].dtype());
  absl::Status checked =
      CheckConfusion({FromProto(logits[0].dtype()), global}, {label_type, rows_dims});
  if (!checked.ok()) return checked;
  const int64_t classes = global.back();
  auto values = probe::Assemble(labels, /*adds_up=*/false);
  if (!values.ok()) return values.status();
  const auto best = PredictedClasses(logits, NumElements(rows_dims), classes);
  if (!best.ok()) return best.status();
  std::vector<int64_t> counts(static_cast<size_t>(classes * classes));
  const TensorView view{values->mutable_data()->data(), TensorSpec::Whole({label_type, rows_dims})};
  size_t i = 0;
  double largest = 0;
  probe::ForElements(view, [&](double label) {
    const Predicted& row = (*best)[i++];
    largest = std::max(largest, label);
    if (label < 0 || label >= static_cast<double>(classes)) return;
    ++counts[static_cast<size_t>(static_cast<int64_t>(label) * classes + row.of)];
  });
  if (largest >= static_cast<double>(classes)) {
    return BadConfusion(absl::StrCat("there is a label ", static_cast<int64_t>(largest),
                                     ", but the logits have ", classes, " classes, 0 to ",
                                     classes - 1,
                                     "; ask for the tensor that has the logits of all"
                                     " classes"));
  }
  v1::ProbeValue value;
  value.mutable_tensor()->set_dtype(v1::I64);
  value.mutable_tensor()->add_dims(classes);
  value.mutable_tensor()->add_dims(classes);
  value.mutable_tensor()->set_data(counts.data(), counts.size() * sizeof(int64_t));
  return value;
}

}  // namespace espalier
