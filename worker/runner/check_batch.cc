#include "worker/runner/check_batch.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "serving/runner/row_outputs.h"

namespace espalier {
namespace {

absl::Status Bad(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("batch: ", what));
}

absl::Status CheckRange(const std::vector<int32_t>& values, const char* name, int begin, int end) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] < begin || values[i] >= end) {
      return Bad(
          absl::StrCat(name, "[", i, "] is ", values[i], "; accepted: [", begin, ", ", end, ")"));
    }
  }
  return absl::OkStatus();
}

// Checks count + 1 offsets: from 0, nondecreasing, ending at `total`.
absl::Status CheckOffsets(const std::vector<int32_t>& offsets, const char* name, size_t count,
                          size_t total) {
  if (offsets.size() != count + 1) {
    return Bad(absl::StrCat(name, " has ", offsets.size(), " entries; ", count + 1, " are needed"));
  }
  if (offsets.front() != 0 || offsets.back() != static_cast<int32_t>(total) ||
      !std::is_sorted(offsets.begin(), offsets.end())) {
    return Bad(absl::StrCat(name, " must rise from 0 to ", total));
  }
  return absl::OkStatus();
}

absl::Status CheckCount(size_t count, const char* name, int limit) {
  if (count <= static_cast<size_t>(limit)) return absl::OkStatus();
  return Bad(absl::StrCat(name, " has ", count, " entries; at most ", limit));
}

}  // namespace

absl::Status CheckBatch(const RunnerBatch& batch, const RunnerLimits& limits, int max_output_rows) {
  const size_t rows = batch.tokens.size();
  const size_t sequences = batch.sequence_start.empty() ? 0 : batch.sequence_start.size() - 1;
  if (rows == 0) return Bad("it has no rows");
  for (const auto& [values, name] :
       {std::pair{&batch.positions, "positions"}, std::pair{&batch.slots, "slots"},
        std::pair{&batch.row_sequence, "row_sequence"},
        std::pair{&batch.row_prefix, "row_prefix"}}) {
    if (values->size() != rows) {
      return Bad(absl::StrCat(name, " has ", values->size(), " entries for ", rows, " tokens"));
    }
  }
  if (!batch.row_adapter.empty() && batch.row_adapter.size() != rows) {
    return Bad(absl::StrCat("row_adapter has ", batch.row_adapter.size(), " entries for ", rows,
                            " tokens"));
  }
  const absl::Status checks[] = {
      CheckCount(rows, "tokens", limits.max_rows),
      CheckCount(sequences, "sequences", limits.max_sequences),
      CheckCount(batch.sequence_slots.size(), "sequence_slots", limits.max_context_slots),
      CheckCount(batch.ancestor_slots.size(), "ancestor_slots", limits.max_ancestor_slots),
      CheckCount(batch.logit_rows.size(), "logit_rows", max_output_rows),
      CheckOffsets(batch.ancestor_start, "ancestor_start", rows, batch.ancestor_slots.size()),
      CheckOffsets(batch.sequence_start, "sequence_start", sequences, batch.sequence_slots.size()),
      CheckRange(batch.tokens, "tokens", 0, limits.vocabulary),
      CheckRange(batch.positions, "positions", 0, limits.max_positions),
      CheckRange(batch.slots, "slots", 0, limits.kv_slots),
      CheckRange(batch.ancestor_slots, "ancestor_slots", 0, limits.kv_slots),
      CheckRange(batch.sequence_slots, "sequence_slots", 0, limits.kv_slots),
      CheckRange(batch.row_sequence, "row_sequence", 0, static_cast<int>(sequences)),
      CheckRange(batch.logit_rows, "logit_rows", 0, static_cast<int>(rows)),
      CheckRange(batch.row_adapter, "row_adapter", -1, limits.adapters),
  };
  for (const absl::Status& status : checks) {
    if (!status.ok()) return status;
  }
  for (size_t r = 0; r < rows; ++r) {
    const int sequence = batch.row_sequence[r];
    const int length = batch.sequence_start[sequence + 1] - batch.sequence_start[sequence];
    const int ancestors = batch.ancestor_start[r + 1] - batch.ancestor_start[r];
    if (batch.row_prefix[r] < 0 || batch.row_prefix[r] > length) {
      return Bad(absl::StrCat("row_prefix[", r, "] is ", batch.row_prefix[r], "; sequence ",
                              sequence, " has ", length, " slots"));
    }
    const int32_t last =
        ancestors > 0 ? batch.ancestor_slots[batch.ancestor_start[r + 1] - 1]
        : batch.row_prefix[r] > 0
            ? batch.sequence_slots[batch.sequence_start[sequence] + batch.row_prefix[r] - 1]
            : -1;
    if (last != batch.slots[r]) {
      return Bad(absl::StrCat("row ", r, " does not see its own slot ", batch.slots[r], " last"));
    }
  }
  std::vector<int32_t> slots = batch.slots;
  std::sort(slots.begin(), slots.end());
  auto twice = std::adjacent_find(slots.begin(), slots.end());
  if (twice != slots.end()) return Bad(absl::StrCat("two rows write slot ", *twice));
  if (std::adjacent_find(batch.logit_rows.begin(), batch.logit_rows.end(),
                         std::greater_equal<>()) != batch.logit_rows.end()) {
    return Bad("logit_rows must ascend");
  }
  if (absl::Status s = CheckRowOutputs(batch, limits.vocabulary); !s.ok()) return Bad(s.message());
  return absl::OkStatus();
}

}  // namespace espalier
