// top_k, arg_top_k, sort and argsort: the first k elements of each line in the order of their
// values.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "ops/cpu/threading/parallel.h"
#include "ops/kernel/axis_lines.h"
#include "ops/kernel/kernel.h"

namespace espalier {

// An element and its index as an integer key that sorts by value, NaN as the largest, then by
// index.
struct SmallKey {
  using Type = uint64_t;
  static Type Of(float value, bool largest, uint32_t place) {
    const uint32_t bits = std::bit_cast<uint32_t>(value + 0.0f);  // -0 equals 0
    uint32_t key = bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
    if (value != value) key = 0xffffffffu;
    return Join(largest ? ~key : key, place);
  }
  static Type Of(int32_t value, bool largest, uint32_t place) {
    const uint32_t key = static_cast<uint32_t>(value) ^ 0x80000000u;
    return Join(largest ? ~key : key, place);
  }
  static uint32_t Place(Type key) { return static_cast<uint32_t>(key); }

 private:
  static Type Join(uint32_t key, uint32_t place) { return static_cast<Type>(key) << 32 | place; }
};

struct LargeKey {
  using Type = std::pair<uint64_t, uint32_t>;
  static Type Of(int64_t value, bool largest, uint32_t place) {
    const uint64_t key = static_cast<uint64_t>(value) ^ (uint64_t{1} << 63);
    return {largest ? ~key : key, place};
  }
  static uint32_t Place(const Type& key) { return key.second; }
};

// Puts the first k of n keys, in order, into *keys; key(i) is the key of element i.
template <typename Key, typename KeyOf>
void SelectFirst(int64_t n, int64_t k, const KeyOf& key, std::vector<Key>* keys) {
  keys->clear();
  if (k == 0) return;
  if (k <= n / 16) {
    // k is much smaller than n: keeps the best k in a heap with the worst on top.
    for (int64_t i = 0; i < k; ++i) keys->push_back(key(i));
    std::make_heap(keys->begin(), keys->end());
    for (int64_t i = k; i < n; ++i) {
      const Key next = key(i);
      if (!(next < keys->front())) continue;
      std::pop_heap(keys->begin(), keys->end());
      keys->back() = next;
      std::push_heap(keys->begin(), keys->end());
    }
    std::sort_heap(keys->begin(), keys->end());
    return;
  }
  for (int64_t i = 0; i < n; ++i) keys->push_back(key(i));
  if (k < n) std::nth_element(keys->begin(), keys->begin() + k, keys->end());
  keys->resize(k);
  std::sort(keys->begin(), keys->end());
}

// `values` and `places` (Place: i32 or i64) have k elements along `axis`; either may be null.
template <typename Keys, typename T, typename Place>
void TopK(const TensorView& x, int64_t axis, int64_t k, bool largest, T* values, Place* places) {
  const AxisLines lines(x.dims(), axis);
  const T* data = x.as<T>();
  ParallelRanges(lines.count(), lines.length * 4, [&](int64_t begin, int64_t end) {
    std::vector<typename Keys::Type> keys;
    for (int64_t line = begin; line < end; ++line) {
      const T* from = data + lines.Start(line);
      SelectFirst(
          lines.length, k,
          [&](int64_t i) {
            return Keys::Of(from[i * lines.inner], largest, static_cast<uint32_t>(i));
          },
          &keys);
      const int64_t to = line / lines.inner * k * lines.inner + line % lines.inner;
      for (int64_t i = 0; i < k; ++i) {
        const uint32_t place = Keys::Place(keys[i]);
        if (values != nullptr) values[to + i * lines.inner] = from[place * lines.inner];
        if (places != nullptr) places[to + i * lines.inner] = static_cast<Place>(place);
      }
    }
  });
}

// Which elements of each line, and their order.
struct Selection {
  int64_t axis = -1;
  int64_t k = -1;  // negative: all
  bool largest = false;

  static Selection OfTopK(const Attributes& attributes) {
    return {attributes.Int("axis"), attributes.Int("k"), attributes.Bool("largest")};
  }
  static Selection OfSort(const Attributes& attributes) {
    return {attributes.Int("axis"), -1, attributes.Bool("descending")};
  }
};

// Writes `values` (may be absent) and `places`.
template <typename Place>
KernelStatus RunTopK(const Selection& wanted, const TensorView& x, const TensorView& values,
                     const TensorView& places) {
  if (x.num_elements() == 0) return KernelStatus::Ok();
  const auto [axis, first, largest] = wanted;
  const int64_t k = first < 0 ? AxisLines(x.dims(), axis).length : first;
  Place* at = places.as<Place>();
  switch (x.dtype()) {
    case DType::kI32:
      TopK<SmallKey>(x, axis, k, largest, values.as<int32_t>(), at);
      break;
    case DType::kI64:
      TopK<LargeKey>(x, axis, k, largest, values.as<int64_t>(), at);
      break;
    default:
      TopK<SmallKey>(x, axis, k, largest, values.as<float>(), at);
  }
  return KernelStatus::Ok();
}

// dx is dy at the places that it was taken from, and 0 elsewhere. `places` are i64; dy may be
// absent.
inline KernelStatus RunTopKGradient(int64_t axis, const TensorView& places, const TensorView& dy,
                                    const TensorView& dx) {
  std::memset(dx.data, 0, static_cast<size_t>(dx.spec.bytes()));
  if (!dy.present() || dy.num_elements() == 0) return KernelStatus::Ok();
  const AxisLines lines(dx.dims(), axis);
  const int64_t k = AxisLines(dy.dims(), axis).length;
  const int64_t* at = places.as<int64_t>();
  const float* from = dy.as<float>();
  float* to = dx.as<float>();
  ParallelFor(dy.num_elements(), 2, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t line = i / (k * lines.inner) * lines.inner + i % lines.inner;
      to[lines.Start(line) + at[i] * lines.inner] = from[i];
    }
  });
  return KernelStatus::Ok();
}

// Keys hold indices of 32 bits.
inline bool FitsTopK(const KernelSpec& spec, std::string* refusal) {
  const Dims& x = spec.inputs[0].dims;
  if (AxisLines(x, spec.attributes.Int("axis")).length < int64_t{1} << 31) return true;
  *refusal = "more than 2^31 elements to choose from";
  return false;
}

}  // namespace espalier
