// The dataset of a job as its checks see it, and a text as the tokens of a tokenizer.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "espalier/v1/training.pb.h"
#include "server/artifacts/artifact_store.h"
#include "server/jobs/job_tokenizer.h"
#include "storage/dataset.h"
#include "storage/dataset_roots.h"

namespace espalier {

// Checks all data that the workers will read, without keeping it in memory (Dataset::OutlineOf).
// A path or an object of S3 is opened beneath `roots` only.
absl::StatusOr<std::shared_ptr<const Dataset>> OutlineDataset(const v1::Dataset& dataset,
                                                              const ArtifactStore& artifacts,
                                                              const DatasetRoots& roots);

// Returns the SHA-256 of the dataset's file; of an artifact as it is known; "etag:" and the ETag of
// an object of S3, which is not read for that. Reads a file, unless `stopped` returns true: then
// Cancelled. Empty for a STREAM.
absl::StatusOr<std::string> DigestDataset(const v1::Dataset& dataset,
                                          const ArtifactStore& artifacts, const DatasetRoots& roots,
                                          const std::function<bool()>& stopped);

struct TokenizedText {
  // Window i is tokens [i * S, i * S + S + 1) of the text: columns "tokens" and "targets", i32 [S].
  std::shared_ptr<const Dataset> dataset;
  std::string note;  // how many tokens there are
};

// Encodes the whole text as one document, without the tokens that the tokenizer's post-processor
// adds; spellings of special tokens, such as of the eos between documents, are these tokens. Holds
// some twenty times the text. ResourceExhausted for a text of more than 128 MiB, InvalidArgument
// for one with too few tokens for an example. REQUIRES: tokenizer.tokenizer is not null.
absl::StatusOr<TokenizedText> TokenizeText(const v1::Dataset& dataset,
                                           const ArtifactStore& artifacts,
                                           const DatasetRoots& roots,
                                           const JobTokenizer& tokenizer);

// Returns an artifact of this owner, of format NPZ, that holds the tokens: one that exists, or a
// new one.
absl::StatusOr<std::string> KeepTokens(ArtifactStore* artifacts, const Dataset& tokens,
                                       const std::string& owner);

}  // namespace espalier
