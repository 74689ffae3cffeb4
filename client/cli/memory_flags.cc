#include "client/cli/memory_flags.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace espalier {

std::vector<FlagSpec> MemoryFlags() {
  return {
      {"no-swap", FlagType::kSwitch, "", "do not swap tensors to host memory"},
      {"no-recompute", FlagType::kSwitch, "", "do not recompute activations"},
      {"host-memory", FlagType::kNumber, "GIB",
       "limit of swapped tensors in host memory (no "
       "limit)",
       0, 0},
      {"host-bandwidth", FlagType::kNumber, "GBPS",
       "bandwidth between a device and its host, gigabytes per second (6)", 0, 1e-6},
      {"swapout-threshold", FlagType::kInt, "N",
       "keep a tensor if its next use is at most N instructions away (chosen by simulation)", 0, 0,
       1 << 30},
      {"swapin-ahead", FlagType::kInt, "N",
       "start to swap a tensor in N instructions before its use (chosen by simulation)", 0, 0,
       1 << 30},
      {"swapin-groupby", FlagType::kInt, "N",
       "uses at most N instructions apart share one swap-in (chosen by simulation)", 0, 0, 1 << 30},
      {"sync-mode", FlagType::kInt, "N",
       "computation waits for: 0 nothing, 1 swap-outs, 2 swap-ins, 3 both (0)", 0, 0, 3},
      {"batch-tiles", FlagType::kInt, "N",
       "split operators that still do not fit into up to N batch tiles: a power of two; 1: never "
       "(8, or 1 with --no-swap and --no-recompute)",
       0, 1, 64},
  };
}

absl::Status FillMemory(const ParsedFlags& flags, v1::SearchOptions* search) {
  const std::vector<FlagSpec> all = MemoryFlags();
  if (std::none_of(all.begin(), all.end(), [&](const FlagSpec& f) { return flags.Has(f.name); })) {
    return absl::OkStatus();
  }
  v1::MemoryOptions* memory = search->mutable_memory();
  const bool swaps = !flags.Has("no-swap");
  for (const char* needs : {"host-memory", "host-bandwidth", "swapout-threshold", "swapin-ahead",
                            "swapin-groupby", "sync-mode"}) {
    if (flags.Has(needs) && !swaps) {
      return UsageError(absl::StrCat("--", needs, " and --no-swap exclude each other"));
    }
  }
  memory->set_disable_swap(!swaps);
  memory->set_disable_recompute(flags.Has("no-recompute"));
  memory->set_host_bytes(static_cast<int64_t>(flags.Number("host-memory", 0) * 0x1p30));
  memory->set_host_bandwidth(flags.Number("host-bandwidth", 0) * 1e9);
  memory->set_swapout_threshold(static_cast<int32_t>(flags.Int("swapout-threshold", 0)));
  memory->set_swapin_ahead(static_cast<int32_t>(flags.Int("swapin-ahead", 0)));
  memory->set_swapin_groupby(static_cast<int32_t>(flags.Int("swapin-groupby", 0)));
  const int64_t tiles = flags.Int("batch-tiles", 0);
  if ((tiles & (tiles - 1)) != 0) {
    return UsageError(absl::StrCat("--batch-tiles is \"", tiles,
                                   "\"; accepted: a power of two from 1 (never) to 64"));
  }
  memory->set_max_batch_tiles(static_cast<int32_t>(tiles));
  memory->set_sync_mode(static_cast<int32_t>(flags.Int("sync-mode", 0)));
  return absl::OkStatus();
}

}  // namespace espalier
