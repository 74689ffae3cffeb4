// Allocator for the free slots of a KV cache, in pages of adjacent slots. Attention reads the slots
// of a sequence in order, so they should be adjacent: scattered slots cost a TLB entry each, and
// slots that concurrent requests take in turn map to the same few cache sets. A sequence fills
// pages of its own, and takes slots elsewhere only if no page is empty. Pages are not reserved:
// every free slot can be allocated to any sequence.
#pragma once

#include <cstdint>
#include <vector>

namespace espalier {

class SlotPool {
 public:
  static constexpr int kPage = 16;  // slots

  // The pages of one sequence; initially empty.
  class PageList {
    friend class SlotPool;
    std::vector<int> pages_;
  };

  explicit SlotPool(int slots);

  int free() const { return free_; }

  // Appends `count` slots to `out`, in ascending order where possible. REQUIRES: count <= free().
  void Allocate(int count, PageList& home, std::vector<int32_t>& out);

  // REQUIRES: the slot is not free.
  void Release(int32_t slot);

  // TrimPages gives up pages that are full, or empty beyond the first; ReleasePages gives up all.
  // Other sequences can then claim them.
  void TrimPages(PageList& home);
  void ReleasePages(PageList& home);

  std::vector<int32_t> FreeSlots() const;

 private:
  // The list of a page with a free slot; `kNone`: it is full.
  enum List { kEmpty, kLoose, kHomes, kNone };
  struct Page {
    uint32_t free = 0;
    uint32_t all = 0;  // value of `free` when nothing is allocated
    bool home = false;
    List list = kNone;
    int before = -1, after = -1;  // neighbors in the list
  };

  // Moves the page to the front of its list: recently used slots are still in the CPU caches.
  void Relist(int page);
  void Unlink(int page);
  // returns the number of slots taken
  int TakeFrom(int page, int count, std::vector<int32_t>& out);
  void SetHome(int page, bool home);

  std::vector<Page> pages_;
  int first_[kNone] = {-1, -1, -1};
  int free_ = 0;
};

}  // namespace espalier
