#include "storage/copy_encoding.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

// Higher levels make parameters hardly smaller, but take much longer.
constexpr int kCompressionLevel = 1;
constexpr size_t kDecodedPart = 1 << 20;  // bytes at a time

constexpr absl::string_view kMagic = "ESPSHUF1";
constexpr size_t kHeaderBytes = 16;
constexpr uint32_t kElementBytes = 4;
constexpr uint32_t kBlockBytes = 1 << 20;
constexpr uint32_t kMaxBlockBytes = 64 << 20;

std::string LittleEndian(uint32_t value) {
  std::string bytes;
  for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(value >> shift);
  return bytes;
}

uint32_t FromLittleEndian(absl::string_view bytes) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) {
    value |= static_cast<uint32_t>(static_cast<uint8_t>(bytes[i])) << (8 * i);
  }
  return value;
}

}  // namespace

absl::string_view SuffixOf(CopyEncoding encoding) {
  switch (encoding) {
    case CopyEncoding::kPlain:
      return "";
    case CopyEncoding::kZstd:
      return ".zst";
    case CopyEncoding::kShuffled:
      return ".shuffled";
  }
  return "";
}

absl::StatusOr<CopyEncoding> ChooseEncoding(absl::string_view part) {
  CopyEncoding best = CopyEncoding::kPlain;
  size_t least = part.size() - part.size() / 20;
  for (const CopyEncoding encoding : {CopyEncoding::kZstd, CopyEncoding::kShuffled}) {
    std::string encoded;
    CopyEncoder encoder(encoding);
    absl::Status s = encoder.Add(part, &encoded);
    if (s.ok()) s = encoder.Finish(&encoded);
    if (!s.ok()) return s;
    if (encoded.size() >= least) continue;
    least = encoded.size();
    best = encoding;
  }
  return best;
}

CopyEncoder::CopyEncoder(CopyEncoding encoding) {
  if (encoding != CopyEncoding::kPlain) compressor_.emplace(kCompressionLevel);
  if (encoding == CopyEncoding::kShuffled) shuffler_ = ByteShuffler::Forward(kBlockBytes);
}

absl::Status CopyEncoder::CompressShuffled(std::string* out) {
  if (!begun_) absl::StrAppend(out, kMagic, LittleEndian(kElementBytes), LittleEndian(kBlockBytes));
  begun_ = true;
  return compressor_->Add(shuffled_, out);
}

absl::Status CopyEncoder::Add(absl::string_view bytes, std::string* out) {
  if (!compressor_.has_value()) {
    out->append(bytes.data(), bytes.size());
    return absl::OkStatus();
  }
  if (!shuffler_.has_value()) return compressor_->Add(bytes, out);
  shuffled_.clear();
  shuffler_->Add(bytes, &shuffled_);
  return CompressShuffled(out);
}

absl::Status CopyEncoder::Finish(std::string* out) {
  if (!compressor_.has_value()) return absl::OkStatus();
  if (shuffler_.has_value()) {
    shuffled_.clear();
    shuffler_->Finish(&shuffled_);
    if (absl::Status s = CompressShuffled(out); !s.ok()) return s;
  }
  return compressor_->Finish(out);
}

CopyDecoder::CopyDecoder(CopyEncoding encoding) : encoding_(encoding) {
  if (encoding != CopyEncoding::kPlain) decompressor_.emplace();
}

absl::Status CopyDecoder::ReadHeader(absl::string_view* bytes) {
  const size_t missing = kHeaderBytes - header_.size();
  absl::StrAppend(&header_, bytes->substr(0, missing));
  bytes->remove_prefix(std::min(missing, bytes->size()));
  if (header_.size() < kHeaderBytes) return absl::OkStatus();
  const absl::string_view header = header_;
  const uint32_t element = FromLittleEndian(header.substr(8)),
                 block = FromLittleEndian(header.substr(12));
  if (!absl::StartsWith(header, kMagic) || element != kElementBytes || block < kElementBytes ||
      block > kMaxBlockBytes) {
    return absl::DataLossError(
        "its beginning is not that of shuffled bytes that this version knows");
  }
  shuffler_ = ByteShuffler::Back(block);
  return absl::OkStatus();
}

absl::StatusOr<bool> CopyDecoder::Add(absl::string_view* bytes, std::string* out) {
  if (!decompressor_.has_value()) {
    const absl::string_view part = bytes->substr(0, kDecodedPart);
    out->append(part.data(), part.size());
    bytes->remove_prefix(part.size());
    return !bytes->empty();
  }
  if (encoding_ == CopyEncoding::kZstd) return decompressor_->Add(bytes, kDecodedPart, out);
  if (!shuffler_.has_value()) {
    if (absl::Status s = ReadHeader(bytes); !s.ok()) return s;
    if (!shuffler_.has_value()) return false;
  }
  shuffled_.clear();
  const absl::StatusOr<bool> more = decompressor_->Add(bytes, kDecodedPart, &shuffled_);
  if (more.ok()) shuffler_->Add(shuffled_, out);
  return more;
}

absl::Status CopyDecoder::Finish(std::string* out) {
  if (!decompressor_.has_value()) return absl::OkStatus();
  if (absl::Status s = decompressor_->Finish(); !s.ok()) return s;
  if (shuffler_.has_value()) shuffler_->Finish(out);
  return absl::OkStatus();
}

}  // namespace espalier
