// Intel Advanced Matrix Extensions (AMX): eight tile registers of 16 rows of 64 bytes, and products
// of tiles. A thread must configure the tiles before use; the configuration sets the shape of each
// tile.
#pragma once

#include <immintrin.h>

#include <cstdint>

#define ESPALIER_AMX                                                                              \
  __attribute__((                                                                                 \
      target("amx-tile,amx-int8,amx-bf16,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma," \
             "f16c")))

namespace espalier::amx {

// Whether this CPU has AMX-INT8 and AMX-BF16 and the operating system permits their use. The first
// call requests permission.
bool Available();

// Intel SDM, volume 1, 18.5: palette 1.
struct alignas(64) TileShapes {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t bytes[16] = {};  // of a row
  uint8_t rows[16] = {};

  void Set(int tile, int64_t rows_of, int64_t bytes_of_row) {
    rows[tile] = static_cast<uint8_t>(rows_of);
    bytes[tile] = static_cast<uint16_t>(bytes_of_row);
  }
};
static_assert(sizeof(TileShapes) == 64);

// Configures the calling thread's tiles for its lifetime. Must not be nested.
class Tiles {
 public:
  ESPALIER_AMX Tiles() = default;
  ESPALIER_AMX ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

  // Also zeroes all tiles.
  ESPALIER_AMX void Configure(const TileShapes& shapes) { _tile_loadconfig(&shapes); }
};

}  // namespace espalier::amx
