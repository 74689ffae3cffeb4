// Files of the coordinator that are read over gRPC.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "worker/storage/host_cache.h"

namespace espalier {

// Reads a range of the file.
using RangeReader = std::function<absl::Status(int64_t offset, int64_t bytes, void* out)>;

// Reads in blocks, and keeps the last one, for readers that go through a file in small steps.
std::unique_ptr<ReadableFile> NewRemoteFile(int64_t size, RangeReader read);

// The same for a file of which the SHA-256 (32 bytes) of each block of `block_bytes` is known.
// Blocks are looked for in `cache` first, checked when they arrive (DataLoss), and kept there.
// `cache` must outlive the file.
std::unique_ptr<ReadableFile> NewCachedRemoteFile(int64_t size, RangeReader read,
                                                  int64_t block_bytes,
                                                  std::vector<std::string> block_sha256,
                                                  HostCache* cache);

}  // namespace espalier
