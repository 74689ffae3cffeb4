#include "base/zstd.h"

#include <zstd.h>

#include <new>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

// Appends room for one more block, for a call to write to.
ZSTD_outBuffer RoomAtEnd(std::string* out, size_t room) {
  const size_t used = out->size();
  out->resize(used + room);
  return {out->data() + used, room, 0};
}

}  // namespace

struct ZstdCompressor::Stream {
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ~Stream() { ZSTD_freeCCtx(context); }
};

ZstdCompressor::ZstdCompressor(int level) : stream_(std::make_unique<Stream>()) {
  if (stream_->context == nullptr) throw std::bad_alloc();
  ZSTD_CCtx_setParameter(stream_->context, ZSTD_c_compressionLevel, level);
  ZSTD_CCtx_setParameter(stream_->context, ZSTD_c_checksumFlag, 1);
}

ZstdCompressor::~ZstdCompressor() = default;

absl::Status ZstdCompressor::Add(absl::string_view bytes, std::string* out) {
  return Run(bytes, /*last=*/false, out);
}

absl::Status ZstdCompressor::Finish(std::string* out) { return Run({}, /*last=*/true, out); }

absl::Status ZstdCompressor::Run(absl::string_view bytes, bool last, std::string* out) {
  ZSTD_inBuffer in = {bytes.data(), bytes.size(), 0};
  while (true) {
    const size_t before = out->size();
    ZSTD_outBuffer room = RoomAtEnd(out, ZSTD_CStreamOutSize());
    const size_t left =
        ZSTD_compressStream2(stream_->context, &room, &in, last ? ZSTD_e_end : ZSTD_e_continue);
    out->resize(before + room.pos);
    if (ZSTD_isError(left) != 0) {
      return absl::InternalError(absl::StrCat("zstd: ", ZSTD_getErrorName(left)));
    }
    if (last ? left == 0 : in.pos == in.size) return absl::OkStatus();
  }
}

struct ZstdDecompressor::Stream {
  ZSTD_DCtx* context = ZSTD_createDCtx();
  bool ended = false;
  ~Stream() { ZSTD_freeDCtx(context); }
};

ZstdDecompressor::ZstdDecompressor() : stream_(std::make_unique<Stream>()) {
  if (stream_->context == nullptr) throw std::bad_alloc();
}

ZstdDecompressor::~ZstdDecompressor() = default;

absl::StatusOr<bool> ZstdDecompressor::Add(absl::string_view* compressed, size_t most,
                                           std::string* out) {
  ZSTD_inBuffer in = {compressed->data(), compressed->size(), 0};
  const size_t begin = out->size();
  while (true) {
    if (stream_->ended && in.pos < in.size) {
      return absl::DataLossError("zstd: bytes follow the end of the frame");
    }
    const size_t before = out->size();
    ZSTD_outBuffer room = RoomAtEnd(out, ZSTD_DStreamOutSize());
    const size_t left = ZSTD_decompressStream(stream_->context, &room, &in);
    out->resize(before + room.pos);
    if (ZSTD_isError(left) != 0) {
      return absl::DataLossError(absl::StrCat("zstd: ", ZSTD_getErrorName(left)));
    }
    stream_->ended = left == 0;
    // A full block may hide more.
    const bool over = in.pos == in.size && (stream_->ended || room.pos < room.size);
    if (!over && (stream_->ended || out->size() - begin < most)) continue;
    compressed->remove_prefix(in.pos);
    return !over;
  }
}

absl::Status ZstdDecompressor::Finish() const {
  return stream_->ended ? absl::OkStatus()
                        : absl::DataLossError("zstd: the end of the frame is missing");
}

}  // namespace espalier
