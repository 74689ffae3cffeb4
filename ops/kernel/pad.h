// The index arithmetic of pad(x) along one dimension, forward and backward. Runs on host and
// device.
#pragma once

#include <cstdint>
#include <string>

#include "ops/kernel/host_device.h"

namespace espalier {

enum class PadMode : int32_t { kConstant, kReflect, kEdge, kWrap };

inline bool PadModeFromName(const std::string& name, PadMode* mode) {
  constexpr const char* kNames[] = {"constant", "reflect", "edge", "wrap"};
  for (int i = 0; i < 4; ++i) {
    if (name == kNames[i]) {
      *mode = static_cast<PadMode>(i);
      return true;
    }
  }
  return false;
}

// One dimension: y has begin + size + end elements, and y[i] = x[i - begin] where x has that
// element.
struct PadDim {
  PadMode mode = PadMode::kConstant;
  int64_t size = 0, begin = 0, end = 0;

  // Returns the index in x that y[i] is copied from; -1: the constant.
  ESPALIER_HOST_DEVICE int64_t Source(int64_t i) const {
    const int64_t j = i - begin;
    if (j >= 0 && j < size) return j;
    if (mode == PadMode::kConstant) return -1;
    if (mode == PadMode::kEdge || size == 1) return j < 0 ? 0 : size - 1;
    const int64_t period = mode == PadMode::kWrap ? size : 2 * (size - 1);
    int64_t rest = j % period;
    if (rest < 0) rest += period;
    return rest < size ? rest : period - rest;
  }

  // Returns the indices i with Source(i) == s: `count` from `first` on, `step` apart, in up to two
  // such rows.
  struct Row {
    int64_t first = 0, step = 1, count = 0;
  };
  ESPALIER_HOST_DEVICE Row Uses(int64_t s, int row) const {
    const int64_t n = begin + size + end;
    if (mode == PadMode::kConstant || mode == PadMode::kEdge || size == 1) {
      const bool spread = mode != PadMode::kConstant;
      int64_t low = s + begin, high = s + begin + 1;
      if (spread && s == 0) low = 0;
      if (spread && s == size - 1) high = n;
      if (low < 0) low = 0;
      if (high > n) high = n;
      return {low, 1, row == 0 && high > low ? high - low : 0};
    }
    const int64_t period = mode == PadMode::kWrap ? size : 2 * (size - 1);
    const bool mirrored = mode == PadMode::kReflect && s != 0 && s != size - 1;
    if (row == 1 && !mirrored) return {};
    int64_t first = ((row == 0 ? s : -s) + begin) % period;
    if (first < 0) first += period;
    return {first, period, first < n ? (n - 1 - first) / period + 1 : 0};
  }
};

}  // namespace espalier
