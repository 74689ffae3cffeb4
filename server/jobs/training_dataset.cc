#include "server/jobs/training_dataset.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/file_system.h"
#include "base/random_id.h"
#include "base/sha256.h"
#include "server/artifacts/store_file.h"
#include "storage/npz.h"
#include "storage/npz_writer.h"
#include "storage/s3/endpoint.h"

namespace espalier {
namespace {

constexpr int64_t kMaxDatasetFileBytes = int64_t{16} << 30;
constexpr int64_t kDigestPartBytes = 4 << 20;
constexpr char kETagDigest[] = "etag:";
constexpr int64_t kMaxTokenizedBytes = int64_t{128} << 20;

absl::Status InDataset(absl::string_view uri, const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat("dataset '", uri.substr(0, 300), "': ", status.message()));
}

absl::StatusOr<std::unique_ptr<ReadableFile>> OpenDataset(absl::string_view uri,
                                                          const ArtifactStore& artifacts,
                                                          const DatasetRoots& roots) {
  if (absl::ConsumePrefix(&uri, "artifact:")) {
    absl::StatusOr<std::string> path = artifacts.SingleFile(std::string(uri));
    if (!path.ok()) return path.status();
    return NewPosixFileSystem()->Open(*path);
  }
  if (!absl::StartsWith(uri, "/") && !absl::StartsWith(uri, s3::kScheme)) {
    return absl::InvalidArgumentError(
        absl::StrCat("spec.dataset.uri: '", uri.substr(0, 300),
                     "' is neither artifact:<name>, s3://bucket/key nor an absolute path"));
  }
  absl::StatusOr<std::unique_ptr<ReadableFile>> file = roots.Open(std::string(uri));
  if (file.ok()) return file;
  return InDataset(uri, file.status());
}

// One column of the windows, `shift` tokens ahead.
Column WindowsOf(const std::vector<int>& tokens, const std::string& name, int64_t examples,
                 int64_t sequence_length, int64_t shift) {
  static_assert(sizeof(int) == 4, "tokens are i32");
  Column column;
  column.name = name;
  column.example = {DType::kI32, {sequence_length}};
  column.data.resize(static_cast<size_t>(examples * sequence_length) * sizeof(int));
  std::memcpy(column.data.data(), tokens.data() + shift, column.data.size());
  return column;
}

std::string DescribeTokens(const std::vector<int>& tokens, int64_t bytes,
                           const JobTokenizer& tokenizer) {
  std::string note = absl::StrCat(
      "the text is ", tokens.size(), " tokens of the tokenizer of '", tokenizer.artifact, "', ",
      absl::StrFormat("%.2f", static_cast<double>(bytes) / static_cast<double>(tokens.size())),
      " bytes each");
  if (tokenizer.tokenizer->eos().empty()) return note;
  const int eos = tokenizer.tokenizer->eos()[0];
  absl::StrAppend(&note, "; its end token \"",
                  absl::Utf8SafeCHexEscape(tokenizer.tokenizer->TokenBytes(eos)), "\" is in it ",
                  std::count(tokens.begin(), tokens.end(), eos), " times");
  return note;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Dataset>> OutlineDataset(const v1::Dataset& dataset,
                                                              const ArtifactStore& artifacts,
                                                              const DatasetRoots& roots) {
  const absl::StatusOr<std::unique_ptr<ReadableFile>> file =
      OpenDataset(dataset.uri(), artifacts, roots);
  if (!file.ok()) return file.status();
  const int64_t bytes = (*file)->size();
  if (bytes > kMaxDatasetFileBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("dataset '", dataset.uri(), "' has ", bytes, " bytes; at most ",
                     kMaxDatasetFileBytes, ", for every worker holds all of it; split it"));
  }
  const ByteSource source{
      bytes, [&file](int64_t at, int64_t n, char* to) { return (*file)->Read(at, n, to); }};
  absl::string_view uri = dataset.uri();
  std::string name = dataset.uri();
  if (absl::ConsumePrefix(&uri, "artifact:")) {
    absl::StatusOr<std::string> path = artifacts.SingleFile(std::string(uri));
    if (!path.ok()) return path.status();
    name = *std::move(path);
  }
  auto outline =
      dataset.format() == v1::Dataset::NPZ
          ? Dataset::SummaryOfNpz(source, dataset.holdout_fraction(), Dataset::NpyColumn(name))
          : Dataset::SummaryOfText(bytes, dataset.sequence_length(), dataset.holdout_fraction());
  if (outline.ok()) return outline;
  return InDataset(dataset.uri(), outline.status());
}

absl::StatusOr<std::string> DigestDataset(const v1::Dataset& dataset,
                                          const ArtifactStore& artifacts, const DatasetRoots& roots,
                                          const std::function<bool()>& stopped) {
  if (dataset.format() == v1::Dataset::STREAM) return std::string();
  absl::string_view uri = dataset.uri();
  if (absl::ConsumePrefix(&uri, "artifact:")) {
    const absl::StatusOr<v1::Artifact> artifact = artifacts.Find(std::string(uri));
    if (!artifact.ok()) return artifact.status();
    return artifact->sha256();
  }
  if (absl::StartsWith(uri, s3::kScheme)) {
    const absl::StatusOr<std::unique_ptr<s3::S3File>> object = roots.OpenObject(dataset.uri());
    if (!object.ok()) return InDataset(dataset.uri(), object.status());
    return absl::StrCat(kETagDigest, (*object)->etag());
  }
  const absl::StatusOr<std::unique_ptr<ReadableFile>> file =
      OpenDataset(dataset.uri(), artifacts, roots);
  if (!file.ok()) return file.status();
  Sha256 hash;
  std::vector<char> part(kDigestPartBytes);
  for (int64_t at = 0; at < (*file)->size();) {
    if (stopped()) return absl::CancelledError("stopped");
    const int64_t bytes = std::min<int64_t>(kDigestPartBytes, (*file)->size() - at);
    if (absl::Status s = (*file)->Read(at, bytes, part.data()); !s.ok()) {
      return InDataset(dataset.uri(), s);
    }
    hash.Add(part.data(), bytes);
    at += bytes;
  }
  return hash.Hex();
}

absl::StatusOr<TokenizedText> TokenizeText(const v1::Dataset& dataset,
                                           const ArtifactStore& artifacts,
                                           const DatasetRoots& roots,
                                           const JobTokenizer& tokenizer) {
  const absl::StatusOr<std::unique_ptr<ReadableFile>> file =
      OpenDataset(dataset.uri(), artifacts, roots);
  if (!file.ok()) return file.status();
  const int64_t bytes = (*file)->size();
  if (bytes > kMaxTokenizedBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("dataset '", dataset.uri(), "' has ", bytes,
                     " bytes; a text that is to be tokenized has at ", "most ", kMaxTokenizedBytes,
                     "; write its tokens as arrays (columns \"tokens\" and \"targets\" of an "
                     ".npz), or split it"));
  }
  const absl::StatusOr<std::string> text = ReadWhole(**file, kMaxTokenizedBytes);
  if (!text.ok()) return InDataset(dataset.uri(), text.status());
  const absl::StatusOr<std::vector<int>> tokens =
      tokenizer.tokenizer->TryEncode(*text, {.add_special = false, .parse_special = true});
  if (!tokens.ok()) return InDataset(dataset.uri(), tokens.status());
  const int64_t length = dataset.sequence_length();
  const int64_t examples = (static_cast<int64_t>(tokens->size()) - 1) / length;
  if (tokens->empty() || examples == 0) {
    return InDataset(
        dataset.uri(),
        absl::InvalidArgumentError(absl::StrCat(
            "the text has ", tokens->size(), " tokens of the tokenizer of '", tokenizer.artifact,
            "'; one example of sequence length ", length, " takes ", length, " and one more")));
  }
  absl::StatusOr<std::shared_ptr<const Dataset>> windows =
      Dataset::FromColumns({WindowsOf(*tokens, "tokens", examples, length, 0),
                            WindowsOf(*tokens, "targets", examples, length, 1)},
                           dataset.holdout_fraction());
  if (!windows.ok()) return windows.status();
  return TokenizedText{*std::move(windows), DescribeTokens(*tokens, bytes, tokenizer)};
}

absl::StatusOr<std::string> KeepTokens(ArtifactStore* artifacts, const Dataset& tokens,
                                       const std::string& owner) {
  std::map<std::string, Array> columns;
  for (const Column& column : tokens.columns()) {
    Dims dims = column.example.dims;
    dims.insert(dims.begin(), tokens.examples());
    columns[column.name] = Array{{column.example.dtype, std::move(dims)}, column.data};
  }
  const absl::StatusOr<std::string> file = WriteNpz(columns);
  if (!file.ok()) return file.status();
  const std::string sum = Sha256Hex(*file);
  for (const v1::Artifact& artifact : artifacts->List()) {
    const bool theirs = artifact.owner() == owner && !artifact.metadata().contains("temporary");
    if (theirs && artifact.kind() == v1::Artifact::DATASET && artifact.sha256() == sum) {
      return artifact.name();
    }
  }
  // Not named by its content: a name that is taken would tell others of it.
  const absl::StatusOr<std::string> id = RandomId();
  if (!id.ok()) return id.status();
  const absl::StatusOr<v1::Artifact> stored = StoreFile(
      artifacts, {absl::StrCat("tokens-", id->substr(0, 16)), v1::Artifact::DATASET, {}, owner},
      /*replace=*/false, "tokens.npz", *file);
  if (!stored.ok()) return stored.status();
  return stored->name();
}

}  // namespace espalier
