// Turns a request for a session into what can be planned.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "espalier/v1/session.pb.h"
#include "server/artifacts/artifact_store.h"
#include "server/jobs/index_ranges.h"
#include "server/jobs/prepare_job.h"
#include "storage/dataset_roots.h"

namespace espalier {

struct PreparedSession {
  PreparedJob job;
  v1::TrainingSpec spec;                      // with the dataset that workers open, if any
  std::map<std::string, TensorType> columns;  // of one example, by column; as the graph reads it
  std::map<std::string, std::vector<InputRange>> ranges;  // by column
  std::map<std::string, TensorType> outputs;              // named results, whole
  std::set<std::string> reported;                         // "loss" and the metrics
  // By named result: the columns that it depends on.
  std::map<std::string, std::set<std::string>> needs;
  v1::SessionProgress begin;
  int64_t examples = 0;  // of the dataset
  int64_t training_examples = 0;
};

// Does every check that needs no workers. A text that is tokenized becomes an artifact of `owner`.
// InvalidArgument names the field; other errors as PrepareJob.
absl::StatusOr<PreparedSession> PrepareSession(const OpRegistry& registry, ArtifactStore* artifacts,
                                               const DatasetRoots& roots,
                                               const v1::OpenSessionRequest& request,
                                               const std::string& owner);

}  // namespace espalier
