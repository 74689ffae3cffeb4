#include "serving/scheduler/scheduler.h"

#include <algorithm>
#include <vector>

#include "absl/types/span.h"

namespace espalier {
namespace {

constexpr int kPromptShare = 4;  // 1/4 of the rows is reserved for prompts

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
    FillRemainingRows();
    return std::move(out_);
  }

 private:
  // Slots that `rows` more tokens and a tree take in one pool. An SSM may have to prefill first.
  static int Need(const RequestView& view, int pool, int rows, int tree_nodes) {
    if (view.computed[pool] < 0) return 0;
    return std::max(0, view.computed[0] + rows - view.computed[pool]) + tree_nodes;
  }

  // `idle`: additional slots of pool 0.
  bool HasSlotsForStep(const RequestView& view, int rows, int tree_nodes, int idle = 0) const {
    for (size_t pool = 0; pool < free_.size(); ++pool) {
      const int need = Need(view, static_cast<int>(pool), rows, tree_nodes);
      if (need + (pool == 0 ? idle : 0) > free_[pool]) return false;
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

  std::vector<Assignment>::iterator WorkOf(const RequestView& view) {
    return std::find_if(out_.work.begin(), out_.work.end(),
                        [&](const Assignment& a) { return a.id == view.id; });
  }

  static int Shared(const RequestView& view, size_t pool) {
    return view.shared.empty() ? 0 : view.shared[pool];
  }
  // Slots without an owner after its preemption.
  static int FreedSlots(const RequestView& view, size_t pool) {
    return std::max(0, view.computed[pool] - Shared(view, pool));
  }

  // Also removes its work. The slots are free in the next step.
  void Preempt(const RequestView& victim) {
    const auto work = WorkOf(victim);
    if (work != out_.work.end()) {
      rows_ += work->rows + work->tree_nodes;
      for (size_t pool = 0; pool < free_.size(); ++pool) {
        free_[pool] += Need(victim, static_cast<int>(pool), work->rows, work->tree_nodes);
      }
      out_.work.erase(work);
    }
    out_.preempt.push_back(victim.id);
  }

  // Takes slots and work from the running request of lowest rank, if `view`, which runs, outranks
  // it.
  bool PreemptForRankOf(const RequestView& view) {
    if (input_.steps_in_flight || alive_.empty() || !view.Outranks(*alive_.back())) return false;
    const RequestView& victim = *alive_.back();
    alive_.pop_back();
    Preempt(victim);
    for (size_t pool = 0; pool < free_.size(); ++pool) free_[pool] += FreedSlots(victim, pool);
    return true;
  }

  bool Alive(const RequestView& view) const {
    return std::find(alive_.begin(), alive_.end(), &view) != alive_.end();
  }

  // Does not count prompts that cannot run for lack of places or slots: their rows would stay
  // empty.
  int RowsKeptForPrompts() const {
    const int64_t most = input_.max_rows / kPromptShare;
    int64_t needed = 0;
    for (const RequestView& view : input_.running) needed += view.busy ? 0 : view.prompt_left();
    for (const RequestView& view : input_.waiting) {
      if (needed >= most || !MayTakeAPlace(view)) break;
      if (view.prefix_producer == 0) needed += view.prompt_left();
    }
    return static_cast<int>(std::min(needed, most));
  }

  void PlanDecoding() {
    std::vector<const RequestView*> decoding;
    for (const RequestView& view : input_.running) {
      if (!view.busy && view.prompt_left() == 0) decoding.push_back(&view);
    }
    std::stable_sort(decoding.begin(), decoding.end(),
                     [](const RequestView* a, const RequestView* b) {
                       return a->priority != b->priority ? a->priority < b->priority
                                                         : a->last_step < b->last_step;
                     });
    const int for_prompts = RowsKeptForPrompts();
    int others = static_cast<int>(decoding.size());
    for (const RequestView* view : decoding) {
      const int room = input_.max_decoding - static_cast<int>(out_.work.size());
      if (room < 1) break;
      const int roots_left = std::min(--others, room - 1);
      if (rows_ < 1 || !Alive(*view)) continue;
      // The first request takes what it needs whatever the others need, so that every tree is run
      // eventually.
      const int spare =
          out_.work.empty() ? rows_ - 1 : std::max(0, rows_ - 1 - roots_left - for_prompts);
      int tree = view->tree_nodes;
      if (view->tree_may_shrink) {
        tree = std::min(tree, std::max(0, rows_ - 1 - roots_left - for_prompts));
        while (tree > 0 && !HasSlotsForStep(*view, 1, tree)) --tree;
      } else if (tree > spare) {
        continue;
      }
      bool suffices = HasSlotsForStep(*view, 1, tree);
      while (!suffices && PreemptForRankOf(*view)) suffices = HasSlotsForStep(*view, 1, tree);
      if (suffices) Assign(*view, 1, tree, /*decodes=*/true);
    }
  }

  static bool PromptWaits(const RequestView& view) { return !view.busy && view.prompt_left() > 0; }

  // Rows for one prompt of the remaining ones, while `others` prompts need some, too.
  int Share(const RequestView& view, int others) const {
    return std::min(others > 0 ? std::max(1, rows_ / 2) : rows_, view.prompt_left());
  }

  void PlanRunningPrompts() {
    int prompts =
        static_cast<int>(std::count_if(input_.running.begin(), input_.running.end(),
                                       [](const RequestView& view) { return PromptWaits(view); }));
    for (const RequestView& view : input_.running) {
      if (!PromptWaits(view)) continue;
      --prompts;
      if (rows_ < 1 || !Alive(view)) continue;
      int rows = Share(view, prompts + (MayAdmit() ? static_cast<int>(input_.waiting.size()) : 0));
      while (!HasSlotsForStep(view, 1, 0) && PreemptForRankOf(view)) {
      }
      while (rows > 0 && !HasSlotsForStep(view, rows, 0)) --rows;
      if (rows > 0) Assign(view, rows, 0, /*decodes=*/false);
    }
  }

  // Known needs of a request: slots for its tokens and for the next step.
  static int KnownNeed(const RequestView& view, int pool) {
    if (view.computed[pool] < 0) return 0;
    return view.length + 1 + view.tree_nodes - view.computed[pool];
  }

  bool HasPlace(int64_t id) const {
    const auto is_it = [&](const RequestView* view) { return view->id == id; };
    return std::any_of(alive_.begin(), alive_.end(), is_it) ||
           std::any_of(waiting_for_prefix_.begin(), waiting_for_prefix_.end(), is_it);
  }
  bool PlaceIsFree() const {
    return static_cast<int>(alive_.size() + waiting_for_prefix_.size()) < input_.max_running;
  }
  bool MayAdmit() const { return PlaceIsFree() && out_.preempt.empty(); }

  bool MayTakeAPlace(const RequestView& view) const { return MayAdmit() && HasSlots(view); }

  // True if slots remain for the request beside the known needs of the running ones, if this many
  // are freed in each pool.
  bool HasSlots(const RequestView& view, absl::Span<const int> freed = {}) const {
    for (size_t pool = 0; pool < free_.size(); ++pool) {
      int unclaimed = input_.free_slots[pool] + (freed.empty() ? 0 : freed[pool]);
      for (const auto* others : {&alive_, &waiting_for_prefix_}) {
        for (const RequestView* other : *others) {
          unclaimed -= KnownNeed(*other, static_cast<int>(pool));
          if (pool == 0) unclaimed -= other->idle_prefix_slots;
        }
      }
      unclaimed -=
          KnownNeed(view, static_cast<int>(pool)) + (pool == 0 ? view.idle_prefix_slots : 0);
      const int spare = SpareSlots(input_.total_slots[pool]);
      if (!alive_.empty() && view.computed[pool] >= 0 && unclaimed < spare) return false;
    }
    return true;
  }

  // A waiting request of higher priority (not just older) preempts running requests of the lowest
  // priorities, if they have enough slots. It is admitted in the next step, when it is known which
  // of their slots were freed, and which slots of its own prefix only they used.
  void PreemptForWaiting(const RequestView& view) {
    // Concurrent prompts are no reason to preempt: their turn ends soon.
    const bool beside_prompts = std::any_of(out_.work.begin(), out_.work.end(),
                                            [](const Assignment& work) { return !work.decodes; });
    if (rows_ < 1 && beside_prompts) return;
    const std::vector<const RequestView*> alive = alive_;
    std::vector<const RequestView*> victims;
    std::vector<int> freed(free_.size(), 0);
    // tokens of its prefix that running requests hold
    const int begun = view.computed[0] - view.idle_prefix_slots;
    int lost = 0;
    for (auto it = input_.running.rbegin(); it != input_.running.rend(); ++it) {
      const RequestView& victim = *it;
      if (victim.priority <= view.priority) break;
      if (victim.in_flight || !Alive(victim)) continue;
      victims.push_back(&victim);
      std::erase(alive_, &victim);
      for (size_t pool = 0; pool < free_.size(); ++pool) freed[pool] += FreedSlots(victim, pool);
      const int alone = std::clamp(begun - Shared(victim, 0), 0, begun - lost);
      lost += alone;
      freed[0] -= alone;
      if (!PlaceIsFree() || !HasSlots(view, freed)) continue;
      for (const RequestView* one : victims) Preempt(*one);
      return;
    }
    alive_ = alive;
  }

  void Admit() {
    if (!out_.preempt.empty()) return;  // slots ran out
    int left = static_cast<int>(input_.waiting.size());
    for (const RequestView& view : input_.waiting) {
      --left;
      if (view.prefix_producer != 0 && HasPlace(view.prefix_producer)) {
        waiting_for_prefix_.push_back(&view);
        continue;
      }
      if (!PlaceIsFree() || rows_ < 1 || !HasSlots(view) ||
          !HasSlotsForStep(view, 1, 0, view.idle_prefix_slots)) {
        PreemptForWaiting(view);
        return;
      }
      free_[0] -= view.idle_prefix_slots;
      int rows = Share(view, left);
      while (rows > 1 && !HasSlotsForStep(view, rows, 0)) --rows;
      out_.admit.push_back(view.id);
      alive_.push_back(&view);
      Assign(view, rows, 0, /*decodes=*/false);
    }
  }

  // Gives rows that nobody took to prompts that can use more.
  void FillRemainingRows() {
    for (Assignment& assignment : out_.work) {
      if (assignment.decodes || rows_ < 1) continue;
      const RequestView& view = ViewOf(assignment.id);
      int more = std::min(rows_, view.prompt_left() - assignment.rows);
      // Its slots so far are already subtracted from free_.
      const auto fits = [&] {
        for (size_t pool = 0; pool < free_.size(); ++pool) {
          const int at = static_cast<int>(pool);
          if (Need(view, at, assignment.rows + more, 0) - Need(view, at, assignment.rows, 0) >
              free_[pool]) {
            return false;
          }
        }
        return true;
      };
      while (more > 0 && !fits()) --more;
      if (more <= 0) continue;
      for (size_t pool = 0; pool < free_.size(); ++pool) {
        const int at = static_cast<int>(pool);
        free_[pool] -=
            Need(view, at, assignment.rows + more, 0) - Need(view, at, assignment.rows, 0);
      }
      assignment.rows += more;
      rows_ -= more;
    }
  }

  const RequestView& ViewOf(int64_t id) const {
    return **std::find_if(alive_.begin(), alive_.end(),
                          [&](const RequestView* view) { return view->id == id; });
  }

  const SchedulerInput& input_;
  int rows_;
  std::vector<int> free_;
  std::vector<const RequestView*> alive_;  // running, by rank; then admitted
  // waiting for a prefix of one of these; they keep their rank
  std::vector<const RequestView*> waiting_for_prefix_;
  Schedule out_;
};

}  // namespace

Schedule MakeSchedule(const SchedulerInput& input) { return Planner(input).Make(); }

}  // namespace espalier
