// The parts of the page, each in its own file; see html.h. All return markup.
#pragma once

#include <string>
#include <vector>

#include "ops/graph/graph.h"
#include "planner/report/timeline.h"
#include "proto/plan.pb.h"

namespace espalier {

std::string HeadlineSection(const proto::Plan& plan, const Graph& graph);
std::string AlternativesSection(const proto::Plan& plan);
std::string StepSection(const proto::Plan& plan);
std::string GraphSection(const proto::Plan& plan, const Graph& graph);
std::string ChangesSection(const proto::Plan& plan);
std::string GanttSection(const proto::Plan& plan, const Timeline& timeline);
std::string LinksSection(const proto::Plan& plan, const Timeline& timeline);
std::string MemorySection(const Timeline& timeline);
std::string OperatorsSection(const proto::Plan& plan);

// The content of <style>.
std::string PageStyle();

}  // namespace espalier
