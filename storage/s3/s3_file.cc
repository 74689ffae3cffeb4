#include "storage/s3/s3_file.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"

namespace espalier::s3 {
namespace {

constexpr int64_t kFirstBlock = int64_t{128} << 10;
constexpr int64_t kLargestBlock = int64_t{8} << 20;
constexpr int64_t kLargeRead = int64_t{2} << 20;
constexpr int64_t kRequestsAtOnce = 4;

}  // namespace

absl::StatusOr<std::unique_ptr<S3File>> S3File::Open(std::shared_ptr<S3Client> client,
                                                     const std::string& key) {
  absl::StatusOr<ObjectInfo> info = client->Head(key);
  if (!info.ok()) return info.status();
  return std::unique_ptr<S3File>(new S3File(std::move(client), key, *std::move(info)));
}

absl::Status S3File::Fetch(int64_t offset, int64_t bytes, char* out) const {
  return client_->Get(key_, info_.etag, offset, bytes, out);
}

absl::Status S3File::FetchAtOnce(int64_t offset, int64_t bytes, char* out) const {
  // The first error stops all.
  std::atomic<int64_t> next = 0;
  std::atomic<bool> failed = false;
  const auto work = [&]() -> absl::Status {
    while (!failed) {
      const int64_t begin = next.fetch_add(kLargestBlock);
      if (begin >= bytes) break;
      const int64_t length = std::min(kLargestBlock, bytes - begin);
      if (absl::Status s = Fetch(offset + begin, length, out + begin); !s.ok()) {
        failed = true;
        return s;
      }
    }
    return absl::OkStatus();
  };
  const int64_t pieces = (bytes + kLargestBlock - 1) / kLargestBlock;
  std::vector<std::future<absl::Status>> others;
  for (int64_t i = 1; i < std::min(kRequestsAtOnce, pieces); ++i) {
    others.push_back(std::async(std::launch::async, work));
  }
  absl::Status status = work();
  for (std::future<absl::Status>& other : others) status.Update(other.get());
  return status;
}

absl::Status S3File::MoveBlock(int64_t offset, int64_t bytes) const {
  const auto fetch = [client = client_, key = key_, etag = info_.etag](
                         int64_t at, int64_t length) -> absl::StatusOr<Block> {
    Block block{at, std::string(static_cast<size_t>(length), '\0')};
    absl::Status s = client->Get(key, etag, at, length, block.bytes.data());
    if (!s.ok()) return s;
    return block;
  };
  const auto length_at = [this](int64_t at, int64_t wanted) {
    return std::min(std::max<int64_t>(wanted, 0), info_.bytes - at);
  };
  const auto size = static_cast<int64_t>(block_.bytes.size());
  const bool goes_on = size > 0 && offset == block_.offset + size;
  absl::StatusOr<Block> block = absl::NotFoundError("nothing was fetched ahead");
  if (ahead_.valid() && ahead_offset_ == offset) block = ahead_.get();
  if (!block.ok()) {
    const int64_t grown = goes_on ? std::min(size * 4, kLargestBlock) : kFirstBlock;
    block = fetch(offset, length_at(offset, std::max(grown, bytes)));
  }
  if (!block.ok()) return block.status();
  block_ = *std::move(block);
  const auto got = static_cast<int64_t>(block_.bytes.size());
  const int64_t end = block_.offset + got;
  if (goes_on && end < info_.bytes) {
    ahead_offset_ = end;
    ahead_ = std::async(std::launch::async, fetch, end,
                        length_at(end, std::min(got * 4, kLargestBlock)));
  }
  return absl::OkStatus();
}

absl::Status S3File::ReadBlocks(int64_t offset, int64_t bytes, char* out) const {
  while (bytes > 0) {
    if (!block_.Holds(offset)) {
      if (absl::Status s = MoveBlock(offset, bytes); !s.ok()) return s;
    }
    const int64_t from = offset - block_.offset;
    const int64_t length = std::min(bytes, static_cast<int64_t>(block_.bytes.size()) - from);
    std::memcpy(out, block_.bytes.data() + from, static_cast<size_t>(length));
    offset += length;
    out += length;
    bytes -= length;
  }
  return absl::OkStatus();
}

absl::Status S3File::Read(int64_t offset, int64_t bytes, void* out) const {
  if (offset < 0 || bytes < 0 || offset > info_.bytes || bytes > info_.bytes - offset) {
    return absl::OutOfRangeError(absl::StrCat(S3Url{client_->bucket(), key_}.ToString(), " has ",
                                              info_.bytes, " bytes; bytes ", offset, " to ",
                                              offset + bytes, " were asked for"));
  }
  if (bytes == 0) return absl::OkStatus();
  char* const to = static_cast<char*>(out);
  if (bytes >= kLargeRead) return FetchAtOnce(offset, bytes, to);
  // Another thread reads elsewhere: its block would be of no use.
  if (!mutex_.TryLock()) return Fetch(offset, bytes, to);
  const absl::Status status = ReadBlocks(offset, bytes, to);
  mutex_.Unlock();
  return status;
}

}  // namespace espalier::s3
