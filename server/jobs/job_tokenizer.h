// The tokenizer of the model that a job trains.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "espalier/v1/training.pb.h"
#include "server/artifacts/artifact_store.h"
#include "serving/tokenizer/tokenizer.h"

namespace espalier {

struct JobTokenizer {
  std::shared_ptr<const Tokenizer> tokenizer;  // null: a text is its bytes
  std::string artifact;                        // that has its files
  std::vector<std::string> notes;              // as DryRunReply.notes
};

// Loads the tokenizer of spec.tokenizer_artifact and, for a text without it, that of
// spec.init_artifact, and checks that the trained model can be served with it. Returns NotFound for
// an artifact that does not exist, InvalidArgument or Unimplemented for a model without a
// config.json of a known family, for a tokenizer that cannot be read, and for one that does not fit
// config.json; errors name the artifact, and the numbers that differ.
absl::StatusOr<JobTokenizer> LoadJobTokenizer(const ArtifactStore& artifacts,
                                              const v1::TrainingSpec& spec);

}  // namespace espalier
