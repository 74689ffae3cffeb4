#include "serving/scheduler/scheduler.h"

#include <algorithm>

namespace espalier {
namespace {

// Of the rows, kept for prompts; of the slots, kept free when a request is admitted beside others.
constexpr int kPromptShare = 4;
constexpr int kSpareShare = 16;

class Planner {
 public:
  explicit Planner(const SchedulerInput& input)
      : input_(input), rows_(input.max_rows), free_(input.free_slots) {
    for (const RequestView& view : input.running) alive_.push_back(&view);
  }

  Schedule Make() {
    PlanDecoding();
    PlanRunningPrompts();
    Admit();
    return std::move(out_);
  }

 private:
  // Slots that `rows` more tokens and a tree take in one pool. An SSM may have to catch up first.
  static int Need(const RequestView& view, int pool, int rows, int tree_nodes) {
    if (view.computed[pool] < 0) return 0;
    return std::max(0, view.computed[0] + rows - view.computed[pool]) + tree_nodes;
  }

  bool SlotsSuffice(const RequestView& view, int rows, int tree_nodes) const {
    for (size_t pool = 0; pool < free_.size(); ++pool) {
      if (Need(view, static_cast<int>(pool), rows, tree_nodes) > free_[pool]) return false;
    }
    return true;
  }

  void Assign(const RequestView& view, int rows, int tree_nodes, bool decodes) {
    out_.work.push_back({view.id, rows, tree_nodes, decodes});
    rows_ -= rows + tree_nodes;
    for (size_t pool = 0; pool < free_.size(); ++pool) {
      free_[pool] -= Need(view, static_cast<int>(pool), rows, tree_nodes);
    }
  }

  // Takes slots and work from the youngest request, if it is younger than `view`.
  bool PreemptOneYoungerThan(const RequestView& view) {
    if (alive_.empty() || alive_.back()->id <= view.id) return false;
    const RequestView& victim = *alive_.back();
    alive_.pop_back();
    const auto work = std::find_if(out_.work.begin(), out_.work.end(),
                                   [&](const Assignment& a) { return a.id == victim.id; });
    if (work != out_.work.end()) {
      rows_ += work->rows + work->tree_nodes;
      for (size_t pool = 0; pool < free_.size(); ++pool) {
        free_[pool] += Need(victim, static_cast<int>(pool), work->rows, work->tree_nodes);
      }
      out_.work.erase(work);
    }
    for (size_t pool = 0; pool < free_.size(); ++pool) {
      free_[pool] += std::max(0, victim.computed[pool]);
    }
    out_.preempt.push_back(victim.id);
    return true;
  }

  bool Alive(const RequestView& view) const {
    return std::find(alive_.begin(), alive_.end(), &view) != alive_.end();
  }

  int RowsKeptForPrompts() const {
    int64_t needed = 0;
    for (const RequestView& view : input_.running) needed += view.prompt_left();
    for (const RequestView& view : input_.waiting) needed += view.length;
    return static_cast<int>(std::min<int64_t>(needed, input_.max_rows / kPromptShare));
  }

  void PlanDecoding() {
    std::vector<const RequestView*> decoding;
    for (const RequestView& view : input_.running) {
      if (view.prompt_left() == 0) decoding.push_back(&view);
    }
    std::stable_sort(
        decoding.begin(), decoding.end(),
        [](const RequestView* a, const RequestView* b) { return a->last_step < b->last_step; });
    const int for_prompts = RowsKeptForPrompts();
    int roots_left = static_cast<int>(decoding.size());
    for (const RequestView* view : decoding) {
      --roots_left;
      if (rows_ < 1 || !Alive(*view)) continue;
      // The first takes what it needs whatever the others want, so that every tree's turn comes.
      const int spare =
          out_.work.empty() ? rows_ - 1 : std::max(0, rows_ - 1 - roots_left - for_prompts);
      int tree = view->tree_nodes;
      if (view->tree_may_shrink) {
        tree = std::min(tree, std::max(0, rows_ - 1 - roots_left - for_prompts));
        while (tree > 0 && !SlotsSuffice(*view, 1, tree)) --tree;
      } else if (tree > spare) {
        continue;
      }
      bool suffices = SlotsSuffice(*view, 1, tree);
      while (!suffices && PreemptOneYoungerThan(*view)) suffices = SlotsSuffice(*view, 1, tree);
      if (suffices) Assign(*view, 1, tree, /*decodes=*/true);
    }
  }

  void PlanRunningPrompts() {
    for (const RequestView& view : input_.running) {
      if (rows_ < 1 || view.prompt_left() == 0 || !Alive(view)) continue;
      int rows = std::min(rows_, view.prompt_left());
      while (!SlotsSuffice(view, 1, 0) && PreemptOneYoungerThan(view)) {
      }
      while (rows > 0 && !SlotsSuffice(view, rows, 0)) --rows;
      if (rows > 0) Assign(view, rows, 0, /*decodes=*/false);
    }
  }

  // Slots that a request is known to need: its tokens and the next step's.
  static int Foreseen(const RequestView& view, int pool) {
    if (view.computed[pool] < 0) return 0;
    return view.length + 1 + view.tree_nodes - view.computed[pool];
  }

  void Admit() {
    if (!out_.preempt.empty()) return;
    std::vector<int> unclaimed = input_.free_slots;
    for (size_t pool = 0; pool < unclaimed.size(); ++pool) {
      for (const RequestView* view : alive_) {
        unclaimed[pool] -= Foreseen(*view, static_cast<int>(pool));
      }
    }
    int running = static_cast<int>(alive_.size());
    for (const RequestView& view : input_.waiting) {
      if (running >= input_.max_running || rows_ < 1) return;
      for (size_t pool = 0; pool < unclaimed.size(); ++pool) {
        unclaimed[pool] -= Foreseen(view, static_cast<int>(pool));
        const int spare = input_.total_slots[pool] / kSpareShare;
        if (running > 0 && view.computed[pool] >= 0 && unclaimed[pool] < spare) return;
      }
      const int rows = std::min(rows_, view.prompt_left());
      if (!SlotsSuffice(view, rows, 0)) return;
      out_.admit.push_back(view.id);
      Assign(view, rows, 0, /*decodes=*/false);
      ++running;
    }
  }

  const SchedulerInput& input_;
  int rows_;
  std::vector<int> free_;
  std::vector<const RequestView*> alive_;  // oldest first
  Schedule out_;
};

}  // namespace

Schedule MakeSchedule(const SchedulerInput& input) { return Planner(input).Make(); }

}  // namespace espalier
