#include "storage/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/json/bounded_json.h"
#include "ops/cpu/layout/copy_box.h"

namespace espalier {
namespace {

using nlohmann::json;

absl::Status DataLoss(const std::string& path, const std::string& what) {
  return absl::DataLossError(absl::StrCat("checkpoint '", path, "': ", what));
}

// "w@0,64" -> {"w", {0, 64}}
bool ParseEntryName(const std::string& entry, std::string* name, Dims* start) {
  const size_t at = entry.rfind('@');
  if (at == std::string::npos) return false;
  *name = entry.substr(0, at);
  start->clear();
  if (at + 1 == entry.size()) return true;
  for (const std::string& part :
       std::vector<std::string>(absl::StrSplit(entry.substr(at + 1), ','))) {
    int64_t value = 0;
    if (!absl::SimpleAtoi(part, &value) || value < 0) return false;
    start->push_back(value);
  }
  return true;
}

// Writes `file`, whose name says where, and adds its size and hash.
absl::StatusOr<ManifestFile> WriteShardFile(CheckpointStore& store, const std::string& folder,
                                            ManifestFile file,
                                            const std::vector<CheckpointEntry>& entries,
                                            CheckpointSource& source) {
  std::vector<SafetensorsWriter::Tensor> tensors;
  std::map<std::string, std::string> metadata;
  for (const CheckpointEntry& entry : entries) {
    const std::string name = absl::StrCat(entry.name, "@", absl::StrJoin(entry.spec.offset, ","));
    json facts;
    facts["global"] = entry.spec.global;
    facts["kind"] = entry.is_state ? "state" : "parameter";
    metadata[name] = facts.dump();
    tensors.push_back({name, entry.spec.type()});
  }
  const std::string name = PathOf(folder, file);
  absl::StatusOr<std::unique_ptr<CheckpointStore::Upload>> upload = store.Put(name);
  if (!upload.ok()) return upload.status();
  SafetensorsWriter writer(*std::move(upload), name);
  if (absl::Status s = writer.Begin(tensors, metadata); !s.ok()) return s;
  std::vector<char> bytes;
  for (size_t i = 0; i < entries.size(); ++i) {
    const int64_t size = entries[i].spec.bytes();
    const char* data = source.Data(static_cast<int>(i));
    absl::Status s;
    if (data == nullptr) {
      bytes.resize(static_cast<size_t>(size));
      s = source.Read(static_cast<int>(i), &bytes);
      data = bytes.data();
    }
    if (s.ok()) s = writer.Append(data, size);
    if (!s.ok()) return s;
  }
  absl::StatusOr<SafetensorsWriter::Written> written = writer.Finish();
  if (!written.ok()) return written.status();
  file.sha256 = written->sha256;
  file.bytes = written->bytes;
  return file;
}

}  // namespace

absl::StatusOr<ManifestFile> WriteCheckpointShard(CheckpointStore& store, const std::string& folder,
                                                  int rank,
                                                  const std::vector<CheckpointEntry>& entries,
                                                  CheckpointSource& source) {
  ManifestFile file;
  file.name = absl::StrCat("rank-", rank, ".safetensors");
  return WriteShardFile(store, folder, std::move(file), entries, source);
}

absl::StatusOr<ManifestFile> WriteUnchangedShard(CheckpointStore& store, const std::string& folder,
                                                 int rank,
                                                 const std::vector<CheckpointEntry>& entries,
                                                 CheckpointSource& source) {
  ManifestFile file;
  file.name = absl::StrCat("unchanged-rank-", rank, ".safetensors");
  file.shared = true;
  return WriteShardFile(store, folder, std::move(file), entries, source);
}

absl::StatusOr<std::unique_ptr<CheckpointReader>> CheckpointReader::Open(
    ObjectReader& store, const std::string& folder) {
  absl::StatusOr<Manifest> manifest = ReadManifest(store, folder);
  if (!manifest.ok()) return manifest.status();
  if (absl::Status s = CheckShardSizes(store, folder, *manifest); !s.ok()) return s;
  auto reader = std::make_unique<CheckpointReader>();
  for (const ManifestFile& listed : manifest->files) {
    const std::string name = PathOf(folder, listed);
    absl::StatusOr<std::unique_ptr<ReadableFile>> open = store.Open(name);
    if (!open.ok()) return open.status();
    absl::StatusOr<std::unique_ptr<SafetensorsFile>> file =
        SafetensorsFile::Open(*std::move(open), name);
    if (!file.ok()) return file.status();
    Shard& shard = reader->shards_.emplace_back();
    shard.file = *std::move(file);
    shard.sha256 = listed.sha256;
    if (absl::Status s = reader->AddShard(shard); !s.ok()) return s;
  }
  reader->manifest_ = *std::move(manifest);
  return reader;
}

absl::Status CheckpointReader::AddShard(Shard& shard) {
  const SafetensorsFile& file = *shard.file;
  for (const auto& [entry_name, entry] : file.tensors()) {
    std::string name;
    Piece piece{&shard, &entry, {}};
    auto facts = file.metadata().find(entry_name);
    if (!ParseEntryName(entry_name, &name, &piece.start) || facts == file.metadata().end()) {
      return DataLoss(file.path(), absl::StrCat("entry '", entry_name, "' is no shard"));
    }
    const json parsed = ParseBoundedJson<json>(facts->second).value_or(json());
    Tensor tensor;
    tensor.dtype = entry.type.dtype;
    bool good = parsed.is_object() && parsed.contains("global") && parsed["global"].is_array() &&
                parsed.contains("kind") && parsed["kind"].is_string() &&
                tensor.dtype != DType::kInvalid;
    int64_t whole = 8;
    for (size_t d = 0; good && d < parsed["global"].size(); ++d) {
      const json& extent = parsed["global"][d];
      good = extent.is_number_unsigned() && extent.get<uint64_t>() <= uint64_t{1} << 60 &&
             !__builtin_mul_overflow(whole, extent.get<int64_t>(), &whole);
      if (good) tensor.global.push_back(extent.get<int64_t>());
    }
    good = good && tensor.global.size() == piece.start.size() &&
           piece.start.size() == entry.type.dims.size();
    for (size_t d = 0; good && d < piece.start.size(); ++d) {
      good = piece.start[d] <= tensor.global[d] &&
             entry.type.dims[d] <= tensor.global[d] - piece.start[d];
    }
    if (!good) {
      return DataLoss(file.path(),
                      absl::StrCat("entry '", entry_name, "' does not fit its tensor"));
    }
    tensor.is_state = parsed["kind"] == "state";
    auto [known, added] = tensors_.emplace(name, tensor);
    if (!added && (known->second.global != tensor.global || known->second.dtype != tensor.dtype)) {
      return DataLoss(file.path(), absl::StrCat("tensor '", name, "' has another shape elsewhere"));
    }
    pieces_[name].push_back(std::move(piece));
  }
  return absl::OkStatus();
}

absl::Status CheckpointReader::HashUpTo(int64_t end, Shard& shard) {
  constexpr int64_t kBlock = 1 << 20;
  std::vector<char> block(static_cast<size_t>(std::clamp<int64_t>(end - shard.hashed, 0, kBlock)));
  while (shard.hashed < end) {
    const int64_t bytes = std::min(kBlock, end - shard.hashed);
    absl::Status s = shard.file->file()->Read(shard.hashed, bytes, block.data());
    if (!s.ok()) return s;
    shard.hash.Add(block.data(), bytes);
    shard.hashed += bytes;
  }
  return absl::OkStatus();
}

absl::Status CheckpointReader::CheckHash(Shard& shard) {
  if (absl::Status s = HashUpTo(shard.file->file()->size(), shard); !s.ok()) return s;
  const std::string found = shard.hash.Hex();
  shard.hash = Sha256();
  shard.hashed = 0;
  if (found == shard.sha256) return absl::OkStatus();
  return DataLoss(shard.file->path(), "the shard does not have the manifest's SHA-256");
}

absl::Status CheckpointReader::Verify() {
  for (Shard& shard : shards_) {
    if (shard.hashed == 0) continue;
    if (absl::Status s = CheckHash(shard); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status CheckpointReader::VerifyAll(const std::function<bool()>& stopped) {
  for (Shard& shard : shards_) {
    if (stopped && stopped()) return absl::CancelledError("stopped while a checkpoint was read");
    if (absl::Status s = CheckHash(shard); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status CheckpointReader::Read(const std::string& name, const TensorSpec& spec, void* host) {
  auto known = tensors_.find(name);
  if (known == tensors_.end()) {
    return absl::NotFoundError(absl::StrCat("the checkpoint has no tensor '", name, "' among its ",
                                            tensors_.size(),
                                            "; it belongs to another model or optimiser"));
  }
  if (known->second.dtype != spec.dtype || known->second.global != spec.global) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor '", name, "' is ", Name(known->second.dtype), ToString(known->second.global),
        " in the checkpoint, ", Name(spec.dtype), ToString(spec.global), " in the program"));
  }
  const int rank = static_cast<int>(spec.dims.size());
  std::vector<bool> covered;  // by element, unless one piece covers all
  int64_t missing = spec.num_elements();
  std::vector<char> bytes;
  for (const Piece& piece : pieces_.at(name)) {
    if (missing == 0) break;
    BoxCopy copy;
    copy.size.resize(rank);
    copy.source_start.resize(rank);
    copy.destination_start.resize(rank);
    bool meets = true;
    for (int d = 0; d < rank; ++d) {
      const int64_t begin = std::max(spec.offset[d], piece.start[d]);
      const int64_t end =
          std::min(spec.offset[d] + spec.dims[d], piece.start[d] + piece.entry->type.dims[d]);
      meets = meets && begin < end;
      copy.size[d] = end - begin;
      copy.source_start[d] = begin - piece.start[d];
      copy.destination_start[d] = begin - spec.offset[d];
    }
    if (!meets) continue;
    // Only the rows of the piece that the region has. The usual case goes without a second copy in
    // memory: rows of both are alike.
    const Dims& of_piece = piece.entry->type.dims;
    const int64_t rows = rank == 0 ? 1 : copy.size[0];
    const int64_t row_bytes = rank == 0 ? piece.entry->bytes : piece.entry->bytes / of_piece[0];
    bool same_rows = true;
    for (int d = 1; d < rank; ++d) {
      same_rows = same_rows && copy.size[d] == spec.dims[d] && copy.size[d] == of_piece[d];
    }
    char* data = static_cast<char*>(host);
    if (!same_rows) {
      bytes.resize(static_cast<size_t>(rows * row_bytes));
      data = bytes.data();
    } else if (rank > 0) {
      data += copy.destination_start[0] * row_bytes;
    }
    Shard& shard = *piece.shard;
    const int64_t first = rank == 0 ? 0 : copy.source_start[0] * row_bytes;
    const int64_t begin = piece.entry->offset + first;
    absl::Status s = HashUpTo(begin, shard);  // hash skipped bytes
    if (s.ok()) s = shard.file->Read(*piece.entry, first, rows * row_bytes, data);
    if (!s.ok()) return s;
    if (shard.hashed == begin) {
      shard.hash.Add(data, rows * row_bytes);
      shard.hashed += rows * row_bytes;
    }
    if (!same_rows) {
      copy.source = bytes.data();
      copy.destination = host;
      copy.dtype = spec.dtype;
      copy.source_dims = of_piece;
      copy.source_dims[0] = rows;
      copy.source_start[0] = 0;
      copy.destination_dims = spec.dims;
      CopyBoxOnHost(copy);
    }
    if (copy.size == spec.dims) {
      missing = 0;
      break;
    }
    covered.resize(static_cast<size_t>(spec.num_elements()), false);
    Dims index(rank, 0);
    for (int64_t i = 0; i < NumElements(copy.size); ++i) {
      int64_t at = 0;
      for (int d = 0; d < rank; ++d) {
        at = at * spec.dims[d] + copy.destination_start[d] + index[d];
      }
      if (!covered[at]) {
        covered[at] = true;
        --missing;
      }
      for (int d = rank - 1; d >= 0 && ++index[d] == copy.size[d]; --d) index[d] = 0;
    }
  }
  if (missing > 0) {
    return absl::DataLossError(
        absl::StrCat("tensor '", name, "': no shard of the checkpoint holds ", missing, " of the ",
                     spec.num_elements(), " elements that are needed"));
  }
  return absl::OkStatus();
}

}  // namespace espalier
