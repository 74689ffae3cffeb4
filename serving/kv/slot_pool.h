// The free slots of a KV cache, in pages of neighbours. Attention reads the slots of a sequence one
// after the other, so they should lie together: spread over the cache they cost a TLB entry each,
// and those of requests that take one slot in turn fall into the same few sets of every cache.
// A sequence fills pages that are its home, and gets slots elsewhere only when no page is empty.
// Nothing is reserved by that: every free slot can be had by everyone.
#pragma once

#include <cstdint>
#include <vector>

namespace espalier {

class SlotPool {
 public:
  static constexpr int kPage = 16;  // slots

  // Of one sequence; empty at its beginning.
  class PageList {
    friend class SlotPool;
    std::vector<int> pages_;
  };

  explicit SlotPool(int slots);

  int free() const { return free_; }

  // Appends `count` slots, which lie in order where they can. REQUIRES: count <= free().
  void Allocate(int count, PageList& home, std::vector<int32_t>& out);

  // REQUIRES: it is not free.
  void Release(int32_t slot);

  // Others may settle in pages of the home that are full, or empty beyond the first.
  void TrimPages(PageList& home);
  void ReleasePages(PageList& home);

  std::vector<int32_t> FreeSlots() const;

 private:
  // Where a page that has a free slot is found; `kNone` is full.
  enum List { kEmpty, kLoose, kHomes, kNone };
  struct Page {
    uint32_t free = 0;
    uint32_t all = 0;  // what `free` is when nothing is taken
    bool home = false;
    List list = kNone;
    int before = -1, after = -1;  // in the list
  };

  // Into the list where it belongs, at its front: what was used last is still in the processor's
  // caches.
  void Relist(int page);
  void Unlink(int page);
  int TakeFrom(int page, int count, std::vector<int32_t>& out);  // how many it had
  void SetHome(int page, bool home);

  std::vector<Page> pages_;
  int first_[kNone] = {-1, -1, -1};
  int free_ = 0;
};

}  // namespace espalier
