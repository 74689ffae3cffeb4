#include "server/replay/replay_program.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/graph/graph_proto.h"
#include "planner/lowering/probe_points.h"
#include "planner/search/apply_rewrites.h"
#include "server/jobs/stored_values.h"

namespace espalier {

absl::StatusOr<std::unique_ptr<ReplayProgram>> ReplayProgram::Make(const AttemptTools& tools,
                                                                   const v1::TrainingSpec& spec,
                                                                   const v1::Plan& plan,
                                                                   const ReplayQuestions& asked) {
  std::unique_ptr<ReplayProgram> made(new ReplayProgram);
  absl::StatusOr<PreparedJob> prepared =
      PrepareJob(*tools.registry, *tools.artifacts, *tools.dataset_roots, spec);
  if (!prepared.ok()) return prepared.status();
  made->prepared_ = *std::move(prepared);
  made->plan_ = plan;
  const Graph& graph = made->prepared_.graph;
  if (plan.graph_fingerprint() != GraphFingerprint(graph)) {
    return absl::FailedPreconditionError(
        "the recorded plan is for another graph than this version of Espalier makes of the job's "
        "model");
  }
  // As Attempt::Run does, so that the instructions are those of the recording.
  LoweringOptions options;
  options.optimizer = made->prepared_.optimizer;
  options.seed = spec.seed();
  options.columns = made->prepared_.columns;
  options.max_literal_bytes = kMaxLiteralBytes;
  options.workspace = tools.planner->workspace();
  options.evaluates = made->prepared_.evaluates;
  absl::StatusOr<LoweredPlan> lowered = LowerPlan(*tools.registry, graph, plan, options);
  if (!lowered.ok()) return lowered.status();
  made->lowered_ = *std::move(lowered);
  absl::StatusOr<Graph> rewritten = graph;
  if (plan.rewrites_size() > 0) rewritten = RewrittenGraph(*tools.registry, graph, plan);
  if (!rewritten.ok()) return rewritten.status();
  const ProbePoints points(*rewritten, made->lowered_.training);
  absl::StatusOr<ProgramQuestions> found = FindQuestions(
      *tools.registry, points, made->lowered_.training, asked, [&made = *made, &tools] {
        return GraphBeforeRewrites(*tools.registry, made.prepared_.model, made.prepared_.graph,
                                   made.prepared_.batch_size);
      });
  if (!found.ok()) return found.status();
  made->questions_ = *std::move(found);
  return made;
}

}  // namespace espalier
