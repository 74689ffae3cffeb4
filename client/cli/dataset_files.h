// Datasets that the command line names.
#pragma once

#include "absl/status/status.h"
#include "client/cli/flags.h"
#include "client/cli/transfer.h"
#include "espalier/v1/training.pb.h"

namespace espalier {

// Sets uri and format of the dataset that the flag `flag` names, after an upload if needed.
absl::Status FillDataset(const ParsedFlags& flags, const char* flag, const Uploader& upload,
                         v1::Dataset* dataset);

}  // namespace espalier
