// The hosts of `espalier launch ssh`: a file like MPI's, "host [slots=N] [devices=cuda:0,cuda:1]".
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

struct LaunchHost {
  std::string address;               // as ssh takes it: an alias of its configuration, user@host
  int slots = 0;                     // workers; 0: one per GPU, at least one
  std::vector<std::string> devices;  // of the workers; empty: as the host has them
  int line = 0;                      // in the file
};

// Returns at least one host. InvalidArgument names the line.
absl::StatusOr<std::vector<LaunchHost>> ParseHostFile(absl::string_view text);

// Devices of a host's workers, once its number of GPUs is known. InvalidArgument if it has too few.
absl::StatusOr<std::vector<std::string>> DevicesOf(const LaunchHost& host, int gpus);

// The host's name for people: without the user.
std::string NameOf(const LaunchHost& host);

}  // namespace espalier
