// The smallest and largest integers of an array, in one pass over it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

namespace espalier {

// Holds two distinct values at each end, each with the index at which it came first: an array is
// within a range with one value outside it exempt if these are.
class IntegerExtremes {
 public:
  struct Place {
    int64_t value = 0;
    int64_t index = 0;
  };

  void Add(int64_t value, int64_t index) {
    if (count_ == 2 && value >= lowest_[1].value && value <= highest_[1].value) return;
    const bool is_new = count_ == 0 || (count_ == 1 && value != lowest_[0].value);
    Insert<-1>({value, index}, &lowest_);
    Insert<1>({value, index}, &highest_);
    if (is_new) ++count_;
  }

  // Returns a value below `low` or above `high` that is not `exempt`; none if all are within.
  std::optional<Place> Outside(int64_t low, int64_t high, std::optional<int64_t> exempt) const {
    for (int i = 0; i < count_; ++i) {
      for (const Place& place : {lowest_[i], highest_[i]}) {
        if ((place.value < low || place.value > high) && place.value != exempt) return place;
      }
    }
    return std::nullopt;
  }

  // Replaces each index.
  template <typename Function>
  void MapIndices(const Function& function) {
    for (int i = 0; i < count_; ++i) {
      lowest_[i].index = function(lowest_[i].index);
      highest_[i].index = function(highest_[i].index);
    }
  }

 private:
  using Ends = std::array<Place, 2>;

  // Sorted by sign * value, the most extreme one first.
  template <int kSign>
  void Insert(Place place, Ends* ends) const {
    const auto is_further = [](const Place& a, const Place& b) {
      return kSign > 0 ? a.value > b.value : a.value < b.value;
    };
    Ends& e = *ends;
    if (count_ > 0 && place.value == e[0].value) return;
    if (count_ > 1 && place.value == e[1].value) return;
    if (count_ == 0) {
      e[0] = place;
    } else if (is_further(place, e[0])) {
      e[1] = e[0];
      e[0] = place;
    } else if (count_ == 1 || is_further(place, e[1])) {
      e[1] = place;
    }
  }

  int count_ = 0;  // distinct values so far, at most 2
  Ends lowest_, highest_;
};

}  // namespace espalier
