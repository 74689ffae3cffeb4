#include "serving/kv/slot_pool.h"

#include <algorithm>

namespace espalier {

SlotPool::SlotPool(int slots) : pages_((std::max(slots, 0) + kPage - 1) / kPage) {
  free_ = std::max(slots, 0);
  // Backwards, so that the lowest page is first in the list.
  for (int p = static_cast<int>(pages_.size()) - 1; p >= 0; --p) {
    const int here = std::min(kPage, free_ - p * kPage);
    pages_[p].free = pages_[p].all = (uint32_t{1} << here) - 1;
    Relist(p);
  }
}

void SlotPool::Unlink(int page) {
  Page& p = pages_[page];
  if (p.list == kNone) return;
  if (p.before >= 0) {
    pages_[p.before].after = p.after;
  } else {
    first_[p.list] = p.after;
  }
  if (p.after >= 0) pages_[p.after].before = p.before;
  p.list = kNone;
  p.before = p.after = -1;
}

void SlotPool::Relist(int page) {
  Page& p = pages_[page];
  const List list = p.free == 0 ? kNone : p.home ? kHomes : p.free == p.all ? kEmpty : kLoose;
  if (list == p.list) return;
  Unlink(page);
  if (list == kNone) return;
  p.list = list;
  p.after = first_[list];
  if (p.after >= 0) pages_[p.after].before = page;
  first_[list] = page;
}

void SlotPool::SetHome(int page, bool home) {
  pages_[page].home = home;
  Relist(page);
}

int SlotPool::TakeFrom(int page, int count, std::vector<int32_t>& out) {
  Page& p = pages_[page];
  int taken = 0;
  for (; taken < count && p.free != 0; ++taken) {
    const int lowest = __builtin_ctz(p.free);
    p.free &= p.free - 1;
    out.push_back(page * kPage + lowest);
  }
  free_ -= taken;
  Relist(page);
  return taken;
}

void SlotPool::Allocate(int count, PageList& home, std::vector<int32_t>& out) {
  for (const int page : home.pages_) count -= TakeFrom(page, count, out);
  while (count > 0 && first_[kEmpty] >= 0) {
    int page = first_[kEmpty];
    const int next = home.pages_.empty() ? page : home.pages_.back() + 1;
    if (next < static_cast<int>(pages_.size()) && pages_[next].list == kEmpty) page = next;
    SetHome(page, true);
    home.pages_.push_back(page);
    count -= TakeFrom(page, count, out);
  }
  while (count > 0) {
    count -= TakeFrom(first_[kLoose] >= 0 ? first_[kLoose] : first_[kHomes], count, out);
  }
}

void SlotPool::Release(int32_t slot) {
  pages_[slot / kPage].free |= uint32_t{1} << (slot % kPage);
  ++free_;
  Relist(slot / kPage);
}

void SlotPool::TrimPages(PageList& home) {
  bool first = true;
  std::erase_if(home.pages_, [&](int page) {
    const Page& p = pages_[page];
    const bool stays = p.free != 0 && (first || p.free != p.all);
    if (stays) {
      first = false;
    } else {
      SetHome(page, false);
    }
    return !stays;
  });
}

void SlotPool::ReleasePages(PageList& home) {
  for (const int page : home.pages_) SetHome(page, false);
  home.pages_.clear();
}

std::vector<int32_t> SlotPool::FreeSlots() const {
  std::vector<int32_t> out;
  for (size_t page = 0; page < pages_.size(); ++page) {
    for (int i = 0; i < kPage; ++i) {
      if ((pages_[page].free >> i & 1) != 0) out.push_back(static_cast<int32_t>(page) * kPage + i);
    }
  }
  return out;
}

}  // namespace espalier
