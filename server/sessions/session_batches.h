// The batches that a session's client names or gives.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "espalier/v1/session.pb.h"
#include "espalier/v1/worker.pb.h"
#include "server/sessions/prepare_session.h"
#include "server/sessions/session_tensors.h"

namespace espalier {

// Examples that exist and fit the model.
struct ChosenExamples {
  enum class Source { kGiven, kRows, kNext, kHeldOut };
  Source source = Source::kNext;
  std::vector<WholeTensor> columns;  // kGiven
  std::vector<int64_t> rows;         // kRows
  int64_t examples = 0;              // 0: kNext
};

// Checks a command's batch and its tensors. `needed`: the columns that must be given; null: all.
// InvalidArgument names the column and what is accepted; FailedPrecondition if the session has no
// dataset.
absl::StatusOr<ChosenExamples> ChooseExamples(const PreparedSession& session,
                                              const v1::SessionBatch& batch,
                                              std::vector<WholeTensor> tensors,
                                              const std::set<std::string>* needed = nullptr);

// Repeats examples until they fill batches of `batch_size`.
void FillBatches(int64_t batch_size, ChosenExamples* examples);

// The messages of `command` on these examples; `next` numbers the first batch in the job's order.
std::vector<v1::RankCommand> WithExamples(v1::RankCommand command, ChosenExamples examples,
                                          int64_t next);

}  // namespace espalier
